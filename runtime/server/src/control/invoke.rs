//! Calls of functions: resolves names to the engine's indices, and encodes results in the form that
//! the client asked for.

use super::Control;
use super::held::HeldFiles;
use super::refusal::{OrRefuse, bad_request, panicked};
use super::requests::{Answered, ready, stored_form, taken, wire_form};
use super::session::Session;
use crate::app::App;
use crate::bodies::{BodyRoom, ROOM_BYTES_MAX};
use crate::identity::{Principal, Reason};
use crate::inference::invoke;
use crate::model::Model;
use crate::routes::Urgency;
use crate::scaling::wait;
use crate::tensors::dtype_of;
use crate::threads::for_tenant;
use atoll_control::limits::{PLANS_MAX, STAGES_MAX};
use atoll_control::{
    Answer, Attachments, Call, Content, Form, Input, Invoke, Invoked, Output, OutputAction, Refusal, RefusalKind,
    Rename, Stage, Timing, Value,
};
use atoll_engine::{ChainRequest, Class, InputTensor, InvocationResult, StageInput, StageRequest, Tenant};
use atoll_protocol::{DataType, TensorMetadata};
use atoll_store::Store;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The calls that the daemon remembers for a connection.
#[derive(Default)]
pub(super) struct Plans(Vec<Plan>);

/// A call without the bytes of its inputs.
#[derive(Clone)]
struct Plan {
    stages: Vec<Stage>,
    instance: Option<String>,
    class: Option<Class>,
    deadline_us: Option<u64>,
}

impl Plans {
    fn remember(&mut self, plan: &Plan) -> Result<u32, Refusal> {
        if self.0.len() >= PLANS_MAX {
            return Err(bad_request(format!("a connection can remember at most {PLANS_MAX} calls")));
        }
        let mut plan = plan.clone();
        for stage in &mut plan.stages {
            stage.inputs.retain(|_, input| !matches!(input, Input::Bytes { .. }));
        }
        self.0.push(plan);
        Ok(self.0.len() as u32 - 1)
    }

    fn renamed(&self, index: u32, rename: Vec<Rename>) -> Result<Plan, Refusal> {
        let mut plan = self
            .0
            .get(index as usize)
            .cloned()
            .ok_or_else(|| bad_request("this connection has not remembered a call with this number"))?;
        for Rename { stage, input, to } in rename {
            let stage =
                plan.stages.get_mut(stage).ok_or_else(|| bad_request(format!("the call has no function {stage}")))?;
            stage.inputs.insert(input, to);
        }
        Ok(plan)
    }
}

/// A stage whose function and tensor names have been resolved.
struct Bound {
    model: Arc<Model>,
    inputs: BTreeMap<String, Input>,
    /// Index of each requested output and what to do with it, in the order of the function's
    /// outputs.
    outputs: Vec<(usize, OutputAction)>,
}

impl Control {
    pub(super) async fn invoke(&self, session: &mut Session, request: Invoke, attachments: Attachments) -> Answered {
        let Invoke { call, instance, class, deadline_us } = request;
        let (plan, remembered) = match call {
            Call::Stages { stages, remember } => {
                let plan = Plan { stages, instance, class, deadline_us };
                let remembered = if remember { Some(session.plans.remember(&plan)?) } else { None };
                (plan, remembered)
            }
            Call::Again { plan: index, rename } => {
                let plan = session.plans.renamed(index, rename)?;
                let (class, deadline_us) = (class.or(plan.class), deadline_us.or(plan.deadline_us));
                (Plan { class, deadline_us, instance: instance.or(plan.instance.clone()), ..plan }, Some(index))
            }
        };
        let principal = &session.principal;
        let stages = self.bind(principal, plan.stages)?;
        let named = plan.instance.as_deref();
        let instance = self.app.instance_of(&stages[0].model, named).map_err(bad_request)?;
        let class = plan.class.or(instance.as_ref().and_then(|instance| instance.class));
        let class = class.unwrap_or_else(|| stages[0].model.class());
        let permit = self.app.admit(principal, &stages[0].model, class).or_refuse()?;
        self.app.check_slot(instance.as_deref(), class).map_err(bad_request)?;
        let (store, tenant) = (self.store.clone(), principal.tenant.clone());
        let app = self.app.clone();
        let read = move || {
            let mut reader =
                Reader { store: &store, tenant: &tenant, class, attachments, app: &app, rooms: Vec::new() };
            let requests: Result<Vec<StageRequest>, Refusal> =
                stages.iter().enumerate().map(|(index, _)| reader.stage(&stages, index)).collect();
            let rooms = reader.rooms;
            requests.map(|requests| (requests, stages, rooms))
        };
        let (requests, stages, _rooms) = for_tenant(&principal.tenant, read).await.ok_or_else(panicked)??;
        let deadline = plan.deadline_us.map(Duration::from_micros);
        let function = &stages[0].model.key;
        let mut urgency = Urgency { class, priority: 0, deadline };
        let _metered = match (&stages[..], &plan.instance) {
            ([stage], None) => {
                let waited = wait::for_instance(&self.app, &stage.model, class, deadline).await;
                let (left, mut metered) = waited.or_refuse()?;
                urgency.deadline = left;
                wait::in_time(&self.app, &stage.model, urgency, &mut metered).or_refuse()?;
                metered
            }
            _ => None,
        };
        // The daemon chooses an instance only for a call of one function, and measures only such
        // calls. A chain runs under the instance that it names, if any.
        let mut route = self.app.instances.route(function, urgency, plan.instance, stages.len());
        let mut request = ChainRequest {
            stages: requests,
            class: Some(class),
            priority: 0,
            instance: None,
            deadline: urgency.deadline,
            times_launches: false,
        };
        let submitted = Instant::now();
        let result = loop {
            request.instance = route.next();
            let again = route.keep(&request);
            let measured = request.instance.as_deref().filter(|_| stages.len() == 1);
            let routed = self.app.instances.begin(function, measured, urgency);
            let result = invoke(&self.app.engine, &permit, request).await;
            routed.into_iter().for_each(|routed| routed.end(&result));
            match again {
                Some(again) if route.is_refused(&result) => request = again,
                _ => break result,
            }
        };
        let result = result.or_refuse()?;
        if let [stage] = &stages[..] {
            stage.model.latencies.note(class, submitted.elapsed());
        }
        let (store, held, owner) = (self.store.clone(), self.held.clone(), principal.clone());
        let encode = move || encode(&store, &held, &owner, class, &stages, result, remembered);
        let answered = for_tenant(&principal.tenant, encode).await.ok_or_else(panicked)?;
        self.counted(principal, class, Reason::Objects, answered)
    }

    /// Resolves the functions and the tensor names of the request.
    fn bind(&self, principal: &Principal, stages: Vec<Stage>) -> Result<Vec<Bound>, Refusal> {
        if stages.is_empty() || stages.len() > STAGES_MAX {
            return Err(bad_request(format!("a call must have 1 to {STAGES_MAX} functions, but has {}", stages.len())));
        }
        let last = stages.len() - 1;
        let bind = |(index, stage): (usize, Stage)| {
            let model = ready(&*self.function(principal, &stage.function)?)?.clone();
            if let Some(unknown) = stage.inputs.keys().find(|name| position(&model.inputs, name).is_none()) {
                return Err(unknown_tensor(&model, "input", unknown));
            }
            let outputs = match stage.outputs {
                Some(wanted) => wanted_outputs(&model, &wanted)?,
                None if index == last => (0..model.outputs.len()).map(|output| (output, OutputAction::Send)).collect(),
                None => Vec::new(),
            };
            Ok(Bound { model, inputs: stage.inputs, outputs })
        };
        stages.into_iter().enumerate().map(bind).collect()
    }
}

fn position(tensors: &[TensorMetadata], name: &str) -> Option<usize> {
    tensors.iter().position(|tensor| tensor.name == name)
}

fn unknown_tensor(model: &Model, what: &str, name: &str) -> Refusal {
    let tensors = if what == "input" { &model.inputs } else { &model.outputs };
    let known: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    bad_request(format!("function `{}` has no {what} `{name}`; it has {}", model.key.name, known.join(", ")))
}

fn wanted_outputs(
    model: &Model,
    wanted: &BTreeMap<String, OutputAction>,
) -> Result<Vec<(usize, OutputAction)>, Refusal> {
    let index = |(name, action): (&String, &OutputAction)| {
        let output = position(&model.outputs, name).ok_or_else(|| unknown_tensor(model, "output", name))?;
        Ok((output, *action))
    };
    let mut outputs: Vec<(usize, OutputAction)> = wanted.iter().map(index).collect::<Result<_, Refusal>>()?;
    outputs.sort_by_key(|(output, _)| *output);
    Ok(outputs)
}

/// Reads the contents of inputs. Blocks.
pub(super) struct Reader<'a> {
    pub(super) store: &'a Store,
    pub(super) tenant: &'a Tenant,
    pub(super) class: Class,
    pub(super) attachments: Attachments,
    pub(super) app: &'a App,
    /// Memory reservations for the bytes read so far.
    pub(super) rooms: Vec<BodyRoom>,
}

impl Reader<'_> {
    fn stage(&mut self, stages: &[Bound], index: usize) -> Result<StageRequest, Refusal> {
        let Bound { model, inputs, outputs } = &stages[index];
        let read = |metadata: &TensorMetadata| {
            let input = inputs.get(&metadata.name);
            let input = input
                .ok_or_else(|| bad_request(format!("function `{}` needs input `{}`", model.key.name, metadata.name)))?;
            match input {
                Input::Output { stage, name } => {
                    let from = stages[..index].get(*stage);
                    let from = from.ok_or_else(|| {
                        bad_request(format!(
                            "input `{}` refers to function {stage}, which is not an earlier function of the call",
                            metadata.name
                        ))
                    })?;
                    let output = position(&from.model.outputs, name)
                        .ok_or_else(|| unknown_tensor(&from.model, "output", name))?;
                    Ok(StageInput::Output { stage: *stage, output })
                }
                input => self.content(metadata, input).map(StageInput::Tensor),
            }
        };
        let inputs: Result<Vec<StageInput>, Refusal> = model.inputs.iter().map(read).collect();
        let outputs = outputs.iter().map(|(output, _)| *output).collect();
        Ok(StageRequest { function: model.key.clone(), inputs: inputs?, outputs: Some(outputs), retain: Vec::new() })
    }

    /// Reads an input that was attached to the call or is stored as an object.
    pub(super) fn content(&mut self, metadata: &TensorMetadata, input: &Input) -> Result<InputTensor, Refusal> {
        match input {
            Input::Bytes { form, blob } => {
                let content = taken(&mut self.attachments, *blob)?;
                self.tensor(metadata, form.clone(), content.bytes(), || content.into_vec().or_refuse())
            }
            Input::Object { digest, form } => {
                let (store, tenant) = (self.store, self.tenant);
                let found = store.find(tenant, *digest).or_refuse()?;
                let form = form.clone().or(found.form.map(wire_form)).or_else(|| declared(metadata));
                let unknown = || {
                    bad_request(format!(
                        "object {digest} has no shape, and input `{}` has variable sizes; state a shape in the call",
                        metadata.name
                    ))
                };
                // The object is read once there is room for it.
                self.tensor(metadata, form.ok_or_else(unknown)?, found.bytes, || {
                    store.lease(tenant, *digest).or_refuse()?.content.to_vec().or_refuse()
                })
            }
            Input::Output { .. } | Input::Future { .. } => Err(bad_request(format!(
                "input `{}` refers to an output; inputs of a graph are bytes, objects or futures",
                metadata.name
            ))),
        }
    }

    fn tensor(
        &mut self,
        metadata: &TensorMetadata,
        form: Form,
        bytes: u64,
        read: impl FnOnce() -> Result<Vec<u8>, Refusal>,
    ) -> Result<InputTensor, Refusal> {
        if bytes > ROOM_BYTES_MAX as u64 {
            let name = &metadata.name;
            return Err(bad_request(format!("input `{name}` has {bytes} bytes; the limit is {ROOM_BYTES_MAX}")));
        }
        let mut room = self.app.bodies.room(self.class);
        if !room.grow_to(bytes as usize) {
            let message = format!("not enough memory for {bytes} bytes of input at the moment; try again later");
            return Err(Refusal { kind: RefusalKind::Busy, message });
        }
        self.rooms.push(room);
        Ok(InputTensor { dtype: dtype_of(form.datatype), shape: form.shape, bytes: read()? })
    }
}

/// The datatype and shape of an input; `None` if a size is variable or the elements are strings.
fn declared(metadata: &TensorMetadata) -> Option<Form> {
    let fixed = metadata.shape.iter().all(|&size| size >= 0) && metadata.datatype != DataType::Bytes;
    fixed.then(|| Form { datatype: metadata.datatype, shape: metadata.shape.clone() })
}

/// Stores outputs as objects or attaches them to the answer. Blocks.
fn encode(
    store: &Store,
    held: &HeldFiles,
    principal: &Principal,
    class: Class,
    stages: &[Bound],
    result: InvocationResult,
    plan: Option<u32>,
) -> Answered {
    let mut attachments = Attachments::default();
    let wanted = stages
        .iter()
        .enumerate()
        .flat_map(|(stage, bound)| bound.outputs.iter().map(move |output| (stage, bound, output)));
    let mut outputs = Vec::with_capacity(result.outputs.len());
    for ((stage, bound, (index, action)), tensor) in wanted.zip(result.outputs) {
        let metadata = &bound.model.outputs[*index];
        let form = Form { datatype: metadata.datatype, shape: tensor.shape };
        let value = match action {
            OutputAction::Send => Value::Blob(held.attach(&principal.tenant, &mut attachments, &tensor.bytes)?),
            OutputAction::Keep => {
                let content = Content::Bytes(tensor.bytes).into_sealed().or_refuse()?;
                let form = stored_form(form.clone());
                Value::Object(
                    store.put(&principal.tenant, &principal.limits.objects, class, Some(form), content).or_refuse()?,
                )
            }
        };
        outputs.push(Output { stage, name: metadata.name.clone(), form, value });
    }
    let timing = Timing {
        queue_ns: result.timing.queue_ns,
        input_ns: result.timing.input_ns,
        compute_ns: result.timing.compute_ns,
        output_ns: result.timing.output_ns,
    };
    Ok((Answer::Invoked(Invoked { outputs, timing, preemptions: result.preemptions, plan }), attachments))
}
