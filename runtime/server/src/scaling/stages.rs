//! Stages of graphs count as requests of their functions, and run under the instances of these.

use super::wait;
use crate::app::App;
use crate::graphs::{Answer, StageCall, Stages};
use crate::inference::{invoke, invoke_by};
use crate::model::Model;
use crate::routes::Urgency;
use atoll_engine::{ChainRequest, Class, DeviceId, InvocationResult, InvokeError, StageInput};
use atoll_fleet::{DeviceState, Inference};
use tokio::sync::oneshot;

impl Stages for App {
    fn call(&self, call: StageCall) -> Answer<'_> {
        Box::pin(run(self, call))
    }

    fn may_bind(&self, model: &Model, class: Class, device: DeviceId) -> bool {
        let has_instances = self.instances.has_one(&model.key, Urgency { class, priority: 0, deadline: None });
        let is_open = |state: &DeviceState| !state.is_lost && !state.is_drained;
        let states = self.engine.devices_state().devices;
        !has_instances
            && model.scaled.is_none()
            && model.devices.contains(&device)
            && states.get(usize::from(device.0)).is_none_or(is_open)
    }
}

/// Lets inputs that are on other devices than that of the call be copied to host memory.
async fn save_inputs_of_others(app: &App, request: &ChainRequest, device: Option<DeviceId>) {
    let device = device.or_else(|| (app.engine.devices().len() == 1).then_some(DeviceId(0)));
    for input in request.stages.iter().flat_map(|stage| &stage.inputs) {
        let StageInput::Retained(tensor) = input else { continue };
        if tensor.saved().is_none() && Some(tensor.device()) != device {
            let (done, saved) = oneshot::channel();
            tensor.save(Box::new(move || {
                // No caller waits if the call was cancelled.
                let _ = done.send(());
            }));
            // If it is lost, the device of the call says so.
            let _ = saved.await;
        }
    }
}

/// Calls the function of a stage under one of its instances. A stage without a given device waits
/// for one, as any request does. A stage whose device is given runs under an instance that is
/// there, or, without one, under the share of its tenant: the device is reserved for it.
async fn run(app: &App, call: StageCall) -> Result<InvocationResult, InvokeError> {
    let StageCall { model, class, mut request, device, permit } = call;
    let _metered;
    (request.deadline, _metered) = match device {
        None => wait::for_instance(app, &model, class, request.deadline).await?,
        Some(_) => (request.deadline, wait::counted(app, &model, class)),
    };
    let given = device.map(|(device, _)| device);
    save_inputs_of_others(app, &request, given).await;
    let urgency = Urgency { class, priority: request.priority, deadline: request.deadline };
    let mut route = app.instances.route(&model.key, urgency, None, 1).on(given);
    loop {
        request.instance = route.next();
        let (again, instance) = (route.keep(&request), request.instance.clone());
        let routed = app.instances.begin(&model.key, instance.as_deref(), urgency);
        let result = match device {
            Some((device, why)) => {
                let submit =
                    move |engine: &dyn Inference, request, reply| engine.submit_to(device, why, request, reply);
                invoke_by(&app.engine, &permit, request, submit).await
            }
            None => invoke(&app.engine, &permit, request).await,
        };
        routed.into_iter().for_each(|routed| routed.end(&result));
        match again {
            Some(again) if route.is_refused(&result) => request = again,
            _ => return result,
        }
    }
}
