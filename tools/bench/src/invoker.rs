//! Asking a model, here or over the network, in one way.

use crate::artifact;
use crate::client::Client;
use crate::engine::EngineArgs;
use crate::failure::Blame;
use crate::symbols::SymbolArgs;
use anyhow::{Context, Result};
use atoll_engine::{
    Class, Engine, EngineHandle, FunctionInfo, FunctionKey, FunctionOptions, InputTensor, InvocationRequest, InvocationResult, InvokeError,
    LaneId,
};
use atoll_kgraph::{BufferKind, Bundle};
use atoll_protocol::{InferRequest, Parameters, Tensor, TensorMetadata};
use atoll_server::{dtype_of, tensor_metadata};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// A model that can be asked.
pub enum Invoker {
    /// In an engine of this process.
    Local(Local),
    /// At a daemon.
    Remote(Remote),
}

/// What a request says besides its tensors.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terms {
    /// 1 for real-time, 2 for best-effort, 0 for the model's own class.
    pub priority: u64,
    /// How long the answer is waited for; without a limit where `None`.
    pub deadline: Option<Duration>,
}

/// What came back.
pub struct Answer {
    /// In the model's order.
    pub outputs: Vec<Tensor>,
    /// How often it had to leave the device for others.
    pub preemptions: u64,
}

impl Invoker {
    /// What the model takes.
    pub fn inputs(&self) -> &[TensorMetadata] {
        match self {
            Invoker::Local(local) => &local.inputs,
            Invoker::Remote(remote) => &remote.inputs,
        }
    }

    /// Asks once and waits for the answer.
    pub fn invoke(&self, inputs: &[Tensor], terms: Terms) -> Result<Answer> {
        match self {
            Invoker::Local(local) => local.invoke(inputs, terms),
            Invoker::Remote(remote) => remote.invoke(inputs, terms),
        }
    }

    /// Ends what was started.
    pub fn stop(self) {
        if let Invoker::Local(local) = self {
            local.engine.shutdown();
        }
    }
}

/// A model in an engine of this process.
pub struct Local {
    engine: Engine,
    handle: EngineHandle,
    name: String,
    inputs: Vec<TensorMetadata>,
    outputs: Vec<TensorMetadata>,
}

impl Local {
    /// Starts an engine with the model on it.
    pub fn start(model: &Path, symbols: &SymbolArgs, engine: &EngineArgs) -> Result<Local> {
        let bundle = artifact::open_with(model, engine.device_name(), symbols)?;
        let engine = engine.start()?;
        let handle = engine.handle();
        let name = bundle.graph().name.clone();
        load(&handle, &bundle, &name, Class::BestEffort)?;
        let [inputs, outputs] = [BufferKind::Input, BufferKind::Output].map(|kind| tensor_metadata(bundle.graph(), kind));
        Ok(Local { engine, handle, name, inputs, outputs })
    }

    fn invoke(&self, inputs: &[Tensor], terms: Terms) -> Result<Answer> {
        let class = match terms.priority {
            0 => None,
            1 => Some(Class::RealTime),
            _ => Some(Class::BestEffort),
        };
        let mut request = request(&self.name, inputs, class);
        request.deadline = terms.deadline;
        let result = invoke(&self.handle, request);
        let result = match result {
            Err(InvokeError::BadInput(reason)) => Err(InvokeError::BadInput(reason)).blame_user(),
            other => other.map_err(anyhow::Error::from),
        }?;
        let output = |(metadata, output): (&TensorMetadata, atoll_engine::OutputTensor)| {
            Tensor::new(metadata.name.clone(), metadata.datatype, output.shape, output.bytes)
        };
        let outputs = self.outputs.iter().zip(result.outputs).map(output).collect::<Result<_, _>>()?;
        Ok(Answer { outputs, preemptions: result.preemptions.into() })
    }
}

/// Loads a bundle under a name.
pub fn load(handle: &EngineHandle, bundle: &Arc<Bundle>, name: &str, class: Class) -> Result<FunctionInfo> {
    load_into(handle, bundle, name, class, LaneId::DEFAULT)
}

/// Loads a bundle into a lane.
pub(crate) fn load_into(handle: &EngineHandle, bundle: &Arc<Bundle>, name: &str, class: Class, lane: LaneId) -> Result<FunctionInfo> {
    let options = FunctionOptions { key: FunctionKey::local(name), class, queue_capacity: None, lane };
    handle.load(bundle.clone(), options).with_context(|| format!("cannot load {name}"))
}

/// A tensor as the engine takes it, which checks it against the model.
pub fn input(tensor: &Tensor) -> InputTensor {
    InputTensor { dtype: dtype_of(tensor.datatype), shape: tensor.shape.clone(), bytes: tensor.bytes.clone() }
}

/// A request with tensors in the model's order.
pub fn request(function: &str, inputs: &[Tensor], class: Option<Class>) -> InvocationRequest {
    let inputs = inputs.iter().map(input).collect();
    InvocationRequest { function: FunctionKey::local(function), inputs, class, priority: 0, deadline: None }
}

/// Calls a function and waits for its result.
pub fn invoke(handle: &EngineHandle, request: InvocationRequest) -> Result<InvocationResult, InvokeError> {
    let (answer, answered) = mpsc::sync_channel(1);
    handle.submit(request, Box::new(move |result| drop(answer.send(result))));
    answered.recv().unwrap_or(Err(InvokeError::ShuttingDown))
}

/// A model of a daemon.
pub struct Remote {
    client: Client,
    model: String,
    inputs: Vec<TensorMetadata>,
}

impl Remote {
    /// Finds the model at a daemon.
    pub fn connect(url: &str, model: &str) -> Result<Remote> {
        let client = Client::new(url)?;
        let metadata = client.metadata(model)?;
        Ok(Remote { client, model: model.into(), inputs: metadata.inputs })
    }

    fn invoke(&self, inputs: &[Tensor], terms: Terms) -> Result<Answer> {
        let mut parameters = Parameters::default();
        parameters.set("binary_data_output", true);
        if terms.priority > 0 {
            parameters.set("priority", terms.priority);
        }
        if let Some(deadline) = terms.deadline {
            parameters.set("deadline_us", u64::try_from(deadline.as_micros()).unwrap_or(u64::MAX));
        }
        let request = InferRequest { parameters, inputs: inputs.to_vec(), ..InferRequest::default() };
        let response = self.client.infer(&self.model, &request)?;
        let preemptions = response.parameters.unsigned("preemptions")?.unwrap_or(0);
        Ok(Answer { outputs: response.outputs.into_iter().map(|output| output.tensor).collect(), preemptions })
    }
}
