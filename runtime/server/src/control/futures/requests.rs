//! The requests about futures, and calls that name their outputs.

use super::{Ended, InputRoom, Kept, Target, cancelled};
use crate::control::Control;
use crate::control::invoke::Plans;
use crate::control::requests::{Answered, plain};
use crate::control::session::Session;
use crate::identity::{Principal, Reason};
use crate::inference::passed;
use atoll_control::{Answer, Attachments, Call, DeferredCall, Input, Invoke, InvokeGraph, Refusal, RefusalKind};
use atoll_engine::{Class, Tenant};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

impl Control {
    /// Begins a future, and runs its call in the background.
    pub(in crate::control) fn defer(
        self: &Arc<Control>,
        principal: &Principal,
        future: String,
        call: DeferredCall,
        attachments: Attachments,
    ) -> Answered {
        let mut pending = self.futures.begin(&principal.tenant, future, Target::of(&call), attachments.files())?;
        let (control, principal) = (self.clone(), principal.clone());
        tokio::spawn(async move {
            let mut session = Session { principal, plans: Plans::default(), announced: HashSet::new(), ring: None };
            let answered = async {
                match call {
                    DeferredCall::Invoke(invoke) => control.invoke_after(&mut session, invoke, attachments).await,
                    DeferredCall::InvokeGraph(call) => {
                        control.invoke_graph_after(&session.principal, call, attachments).await
                    }
                }
            };
            let answered = tokio::select! {
                answered = answered => answered,
                // Not if the future is forgotten, which drops the sender.
                Ok(()) = &mut pending.cancelled => Err(cancelled()),
            };
            pending.end(answered.and_then(Kept::of));
        });
        plain(Answer::Done)
    }

    /// Waits for a future, and sends its outputs.
    pub(in crate::control) async fn await_future(
        &self,
        principal: &Principal,
        future: &str,
        timeout_us: Option<u64>,
    ) -> Answered {
        let ends = timeout_us.and_then(|us| Instant::now().checked_add(Duration::from_micros(us)));
        let ended = tokio::select! {
            biased;
            ended = self.futures.wait(&principal.tenant, future) => ended?,
            () = passed(ends) => {
                let message = format!("future `{future}` has not ended yet; its call continues");
                return Err(Refusal { kind: RefusalKind::Deadline, message });
            }
        };
        match &*ended {
            Ok(kept) => {
                let answered = kept.answer(&self.held, &principal.tenant);
                self.counted(principal, Class::BestEffort, Reason::Objects, answered)
            }
            Err(refusal) => Err(refusal.clone()),
        }
    }

    /// Lists futures.
    pub(in crate::control) fn futures(&self, principal: &Principal, only: Option<&str>) -> Answered {
        plain(Answer::Futures { futures: self.futures.reports(&principal.tenant, only)? })
    }

    /// Cancels the call of a future.
    pub(in crate::control) async fn cancel_future(&self, principal: &Principal, future: &str) -> Answered {
        self.futures.cancel(&principal.tenant, future).await?;
        plain(Answer::Done)
    }

    /// Drops a future with its outputs.
    pub(in crate::control) fn forget_future(&self, principal: &Principal, future: &str) -> Answered {
        match self.futures.forget(&principal.tenant, future, None) {
            true => plain(Answer::Done),
            false => Err(self.futures.missing(&principal.tenant, future)),
        }
    }

    /// Calls functions, after the futures that the call names.
    pub(in crate::control) async fn invoke_after(
        &self,
        session: &mut Session,
        mut invoke: Invoke,
        mut attachments: Attachments,
    ) -> Answered {
        let inputs: Vec<&mut Input> = match &mut invoke.call {
            Call::Stages { stages, .. } => stages.iter_mut().flat_map(|stage| stage.inputs.values_mut()).collect(),
            Call::Again { rename, .. } => rename.iter_mut().map(|rename| &mut rename.to).collect(),
        };
        let tenant = session.principal.tenant.clone();
        let _room = self.resolve(&tenant, inputs, &mut invoke.deadline_us, &mut attachments).await?;
        self.invoke(session, invoke, attachments).await
    }

    /// Calls a graph, after the futures that the call names.
    pub(in crate::control) async fn invoke_graph_after(
        &self,
        principal: &Principal,
        mut call: InvokeGraph,
        mut attachments: Attachments,
    ) -> Answered {
        let inputs = call.inputs.values_mut().collect();
        let _room = self.resolve(&principal.tenant, inputs, &mut call.deadline_us, &mut attachments).await?;
        self.invoke_graph(principal, call, attachments).await
    }

    /// Replaces outputs of futures among inputs by their bytes, once all these futures have ended.
    /// That time counts for the deadline of the call. The result counts the copies.
    async fn resolve(
        &self,
        tenant: &Tenant,
        inputs: Vec<&mut Input>,
        deadline_us: &mut Option<u64>,
        attachments: &mut Attachments,
    ) -> Result<InputRoom, Refusal> {
        let begun = Instant::now();
        let ends = deadline_us.and_then(|us| begun.checked_add(Duration::from_micros(us)));
        let (mut found, mut bytes) = (Vec::new(), 0_usize);
        for input in inputs {
            let Input::Future { future, output } = &*input else { continue };
            let ended = tokio::select! {
                biased;
                ended = self.futures.wait(tenant, future) => ended?,
                () = passed(ends) => {
                    let message = format!("future `{future}` did not end before the deadline");
                    return Err(Refusal { kind: RefusalKind::Deadline, message });
                }
            };
            // One output may be the input of many functions.
            bytes = bytes.saturating_add(kept(&ended, future)?.output(future, output)?.1.map_or(0, Vec::len));
            found.push((input, ended));
        }
        let room = self.futures.hold_inputs(tenant, bytes)?;
        for (input, ended) in found {
            if let Input::Future { future, output } = &*input {
                *input = kept(&ended, future)?.input(future, output, attachments)?;
            }
        }
        if let Some(us) = deadline_us {
            let waited = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
            *us = us.saturating_sub(waited).max(1);
        }
        Ok(room)
    }
}

fn kept<'a>(ended: &'a Ended, future: &str) -> Result<&'a Kept, Refusal> {
    (**ended).as_ref().map_err(|refusal| Refusal {
        kind: refusal.kind,
        message: format!("future `{future}` failed: {}", refusal.message),
    })
}
