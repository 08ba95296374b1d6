//! Stages of graphs count as requests of their functions, and run under the instances of these.

use super::wait;
use crate::app::App;
use crate::graphs::{Answer, StageCall, Stages};
use crate::inference::{invoke, invoke_by};
use crate::routes::Urgency;
use atoll_engine::{InvocationResult, InvokeError};
use atoll_fleet::Inference;

impl Stages for App {
    fn call(&self, call: StageCall) -> Answer<'_> {
        Box::pin(run(self, call))
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
