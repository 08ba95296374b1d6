//! Invocation of a model, in this process or in a daemon, through one interface.

use crate::artifact;
use crate::client::{Client, Prompt};
use crate::credentials::CredentialArgs;
use crate::engine::EngineArgs;
use crate::failure::user_error;
use crate::symbols::ModelArgs;
use anyhow::{Context, Result};
use atoll_engine::limits::SESSION_IDLE_DEFAULT;
use atoll_engine::{
    Class, Engine, EngineHandle, FunctionInfo, FunctionKey, FunctionOptions, InputTensor, InvocationRequest,
    InvocationResult, InvokeError, LaneId, SessionId,
};
use atoll_kgraph::{BufferKind, Bundle};
use atoll_protocol::{InferRequest, Parameters, Tensor, TensorMetadata};
use atoll_server::{dtype_of, tensor_metadata};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// A model that can be invoked.
pub enum Invoker {
    /// In an engine of this process.
    Local(Local),
    /// In a daemon.
    Remote(Remote),
}

/// Parameters of a request, besides its tensors.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terms {
    /// 1 for real-time, 2 for best-effort, 0 for the model's own class.
    pub priority: u64,
    /// Cancels the request after this time; `None` for no limit.
    pub deadline: Option<Duration>,
}

/// The answer to a request.
pub struct Answer {
    /// In the order of the model's outputs.
    pub outputs: Vec<Tensor>,
    /// How often the invocation was preempted.
    pub preemptions: u64,
}

impl Invoker {
    /// The inputs of the model.
    pub fn inputs(&self) -> &[TensorMetadata] {
        match self {
            Invoker::Local(local) => &local.inputs,
            Invoker::Remote(remote) => &remote.inputs,
        }
    }

    /// Invokes the model and waits for the answer.
    pub fn invoke(&self, inputs: &[Tensor], terms: Terms) -> Result<Answer> {
        match self {
            Invoker::Local(local) => local.invoke(inputs, terms),
            Invoker::Remote(remote) => remote.invoke(inputs, terms),
        }
    }

    /// Starts a sequence of requests to a model that keeps state.
    ///
    /// # Errors
    /// The model keeps no state.
    pub fn sequence(&self) -> Result<Sequence<'_>> {
        let of = match self {
            Invoker::Local(local) => {
                let session = local
                    .handle
                    .open_session(&FunctionKey::local(&local.name), SESSION_IDLE_DEFAULT)
                    .map_err(classified)?;
                Numbered::Local(local, session)
            }
            // Sequence ids are unique among the clients of a daemon.
            Invoker::Remote(remote) => {
                Numbered::Remote(remote, format!("atoll-{}-{:?}", std::process::id(), Instant::now()))
            }
        };
        Ok(Sequence { of, steps: 0, is_over: false })
    }

    /// Shuts down the engine, if there is one.
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
    /// Starts an engine and loads the model.
    pub fn start(model: &Path, symbols: &ModelArgs, engine: &EngineArgs) -> Result<Local> {
        let bundle = artifact::open_with(model, engine.device_name(), symbols)?;
        let engine = engine.start()?;
        let handle = engine.handle();
        let name = bundle.graph().name.clone();
        load(&handle, &bundle, &name, Class::BestEffort)?;
        let [inputs, outputs] =
            [BufferKind::Input, BufferKind::Output].map(|kind| tensor_metadata(bundle.graph(), kind));
        Ok(Local { engine, handle, name, inputs, outputs })
    }

    fn invoke(&self, inputs: &[Tensor], terms: Terms) -> Result<Answer> {
        self.answer(invoke(&self.handle, self.request(inputs, terms)))
    }

    fn request(&self, inputs: &[Tensor], terms: Terms) -> InvocationRequest {
        let class = match terms.priority {
            0 => None,
            1 => Some(Class::RealTime),
            _ => Some(Class::BestEffort),
        };
        let mut request = request(&self.name, inputs, class);
        request.deadline = terms.deadline;
        request
    }

    fn answer(&self, result: Result<InvocationResult, InvokeError>) -> Result<Answer> {
        let result = result.map_err(classified)?;
        let output = |(metadata, output): (&TensorMetadata, atoll_engine::OutputTensor)| {
            Tensor::new(metadata.name.clone(), metadata.datatype, output.shape, output.bytes)
        };
        let outputs = self.outputs.iter().zip(result.outputs).map(output).collect::<Result<_, _>>()?;
        Ok(Answer { outputs, preemptions: result.preemptions.into() })
    }
}

/// Marks errors of the input as the user's mistake.
fn classified(error: InvokeError) -> anyhow::Error {
    match error {
        InvokeError::BadInput(reason) => user_error(reason),
        other => other.into(),
    }
}

/// A sequence of requests; each starts from the state that the previous one left.
pub struct Sequence<'i> {
    of: Numbered<'i>,
    steps: usize,
    is_over: bool,
}

enum Numbered<'i> {
    Local(&'i Local, SessionId),
    Remote(&'i Remote, String),
}

impl Sequence<'_> {
    /// Invokes the model and waits for the answer.
    pub fn step(&mut self, inputs: &[Tensor], terms: Terms) -> Result<Answer> {
        let starts = self.steps == 0;
        self.steps += 1;
        match &self.of {
            Numbered::Local(local, session) => {
                let (answer, answered) = mpsc::sync_channel(1);
                let request = local.request(inputs, terms).into();
                local.handle.submit_step(*session, request, Box::new(move |result| drop(answer.send(result))));
                local.answer(answered.recv().unwrap_or(Err(InvokeError::ShuttingDown)))
            }
            Numbered::Remote(remote, id) => remote.ask(inputs, terms, |parameters| {
                parameters.set("sequence_id", id.clone());
                parameters.set("sequence_start", starts);
            }),
        }
    }

    /// Ends the sequence. In a daemon, only a request can end a sequence, so it expires there
    /// instead.
    pub fn end(mut self) {
        self.close();
    }

    fn close(&mut self) {
        if let (Numbered::Local(local, session), false) = (&self.of, std::mem::replace(&mut self.is_over, true)) {
            local.handle.close_session(*session);
        }
    }
}

impl Drop for Sequence<'_> {
    fn drop(&mut self) {
        self.close();
    }
}

/// Loads a bundle under a name.
pub fn load(handle: &EngineHandle, bundle: &Arc<Bundle>, name: &str, class: Class) -> Result<FunctionInfo> {
    load_into(handle, bundle, name, class, LaneId::DEFAULT)
}

/// Loads a bundle into a lane.
pub(crate) fn load_into(
    handle: &EngineHandle,
    bundle: &Arc<Bundle>,
    name: &str,
    class: Class,
    lane: LaneId,
) -> Result<FunctionInfo> {
    let options = FunctionOptions { key: FunctionKey::local(name), class, queue_capacity: None, lane, batching: None };
    handle.load(bundle.clone(), options).with_context(|| format!("cannot load {name}"))
}

/// Converts a tensor to an input of the engine, which checks it against the model.
pub fn input(tensor: &Tensor) -> InputTensor {
    InputTensor { dtype: dtype_of(tensor.datatype), shape: tensor.shape.clone(), bytes: tensor.bytes.clone() }
}

/// A request with tensors in the order of the model's inputs.
pub fn request(function: &str, inputs: &[Tensor], class: Option<Class>) -> InvocationRequest {
    let inputs = inputs.iter().map(input).collect();
    InvocationRequest {
        function: FunctionKey::local(function),
        inputs,
        class,
        priority: 0,
        instance: None,
        deadline: None,
    }
}

/// Invokes a function and waits for the result.
pub fn invoke(handle: &EngineHandle, request: InvocationRequest) -> Result<InvocationResult, InvokeError> {
    let (answer, answered) = mpsc::sync_channel(1);
    handle.submit(request, Box::new(move |result| drop(answer.send(result))));
    answered.recv().unwrap_or(Err(InvokeError::ShuttingDown))
}

/// A model in a daemon.
pub struct Remote {
    client: Client,
    model: String,
    inputs: Vec<TensorMetadata>,
    outputs: Vec<TensorMetadata>,
}

impl Remote {
    /// Finds the model in the daemon.
    pub fn connect(url: &str, model: &str, credentials: &CredentialArgs) -> Result<Remote> {
        let client = Client::new(url, credentials)?;
        let metadata = client.metadata(model)?;
        Ok(Remote { client, model: model.into(), inputs: metadata.inputs, outputs: metadata.outputs })
    }

    /// Whether the daemon runs the model token by token, so that a request is a prompt.
    pub fn generates(&self) -> bool {
        let is = |tensors: &[TensorMetadata], name: &str| tensors.iter().any(|tensor| tensor.name == name);
        self.outputs.len() == 1 && is(&self.outputs, "output_ids") && is(&self.inputs, "input_ids")
    }

    /// Asks a model that generates. Passes on each token when it arrives.
    pub fn generate(&self, prompt: &Prompt<'_>, token: impl FnMut(i64)) -> Result<()> {
        self.client.generate(&self.model, prompt, token)
    }

    fn invoke(&self, inputs: &[Tensor], terms: Terms) -> Result<Answer> {
        self.ask(inputs, terms, |_| ())
    }

    fn ask(&self, inputs: &[Tensor], terms: Terms, more: impl FnOnce(&mut Parameters)) -> Result<Answer> {
        let mut parameters = Parameters::default();
        more(&mut parameters);
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
