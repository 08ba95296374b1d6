//! The request `Trace` (`atoll trace`): recorded events, restricted to what the peer may see.

use super::Control;
use super::requests::Answered;
use super::session::Session;
use crate::control::refusal::{OrRefuse, bad_request, panicked};
use crate::identity::Principal;
use crate::limits::TRACE_NODES_BYTES_MAX;
use crate::threads::for_tenant;
use atoll_control::{Answer, Attachments, Refusal, RefusalKind, TraceFunction, TracePiece};
use atoll_engine::{DeviceId, FunctionName, TraceBatch};
use atoll_trace::Record;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

impl Control {
    pub(super) async fn trace(&self, session: &mut Session, device: DeviceId, from: Option<u64>) -> Answered {
        let engine = self.app.engine.clone();
        let devices = engine.traced();
        if usize::from(device.0) >= devices.len() {
            return Err(bad_request(format!(
                "there is no device number {}; the daemon has {}, numbered from 0",
                device.0,
                devices.join(", ")
            )));
        }
        let batch =
            for_tenant(&session.principal.tenant, move || engine.trace(device, from)).await.ok_or_else(panicked)?;
        let message = || Refusal { kind: RefusalKind::Busy, message: "the daemon is shutting down".into() };
        let batch = shown(batch.ok_or_else(message)?, &session.principal);
        let mut attachments = Attachments::default();
        let bytes: Vec<u8> = batch.records.iter().flat_map(Record::to_words).flat_map(u64::to_le_bytes).collect();
        let piece = TracePiece {
            records: attachments.add(&bytes).or_refuse()?,
            next: batch.next,
            more: batch.more,
            lost: batch.lost,
            chunks_lost: batch.chunks_lost,
            functions: unannounced(batch.functions, &mut session.announced),
            separate: batch.separate,
            device: batch.device,
            compute_units: batch.compute_units,
            devices,
        };
        Ok((Answer::Trace(piece), attachments))
    }
}

/// Removes the records that the peer may not see: those of other tenants' functions. Records
/// without a function, or with a function that the trace no longer knows, are shown only to peers
/// that see all tenants.
fn shown(mut batch: TraceBatch, principal: &Principal) -> TraceBatch {
    if !principal.sees_all_tenants {
        batch.functions.retain(|(_, function)| function.tenant == principal.tenant.as_str());
        let own: HashMap<u64, &FunctionName> =
            batch.functions.iter().map(|(number, function)| (*number, &**function)).collect();
        batch.records.retain(|record| own.contains_key(&record.function));
    }
    batch
}

/// The functions of a batch whose names were not yet sent on this connection.
fn unannounced(functions: Vec<(u64, Arc<FunctionName>)>, announced: &mut HashSet<u64>) -> Vec<TraceFunction> {
    let mut room = TRACE_NODES_BYTES_MAX;
    let function = |(number, function): (u64, Arc<FunctionName>)| {
        let FunctionName { tenant, name, class, nodes } = &*function;
        let bytes = nodes.iter().map(String::len).sum::<usize>();
        let nodes = if bytes <= room { nodes.clone() } else { Vec::new() };
        room = room.saturating_sub(bytes);
        // Tenants of the engine's functions are always valid names.
        Some(TraceFunction { number, tenant: tenant.parse().ok()?, name: name.clone(), class: *class, nodes })
    };
    functions.into_iter().filter(|(number, _)| announced.insert(*number)).filter_map(function).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::{Nanos, TaskId};
    use atoll_engine::Class;
    use atoll_trace::EventKind;

    fn batch() -> TraceBatch {
        let record = |function| Record { at: Nanos(1), task: TaskId(2), function, kind: EventKind::Ready };
        let name = |tenant: &str, node: &str| {
            Arc::new(FunctionName {
                tenant: tenant.into(),
                name: "f".into(),
                class: Class::RealTime,
                nodes: vec![node.into()],
            })
        };
        TraceBatch {
            records: [1, 2, 1, 3, Record::NO_FUNCTION].map(record).into(),
            next: 5,
            more: false,
            lost: 0,
            chunks_lost: 0,
            functions: vec![(1, name("a", "secret of a")), (2, name("b", "secret of b"))],
            separate: true,
            device: "host:0".into(),
            compute_units: 2,
        }
    }

    #[test]
    fn a_tenant_sees_its_own_work_and_no_name_of_others() {
        let mut principal = Principal::of_test("b");
        let seen = |principal: &Principal| {
            let batch = shown(batch(), principal);
            let functions = batch.records.iter().map(|record| record.function).collect::<Vec<_>>();
            (functions, format!("{:?}", batch.functions).contains("secret of a"))
        };
        assert_eq!(seen(&principal), (vec![2], false));
        principal.tenant = "unknown".parse().unwrap();
        assert_eq!(seen(&principal), (vec![], false));
        principal.sees_all_tenants = true;
        assert_eq!(seen(&principal), (vec![1, 2, 1, 3, Record::NO_FUNCTION], true));
    }

    #[test]
    fn functions_are_told_once_and_within_bounds() {
        let mut announced = HashSet::new();
        let long = Arc::new(FunctionName {
            tenant: "a".into(),
            name: "f".into(),
            class: Class::RealTime,
            nodes: vec!["n".repeat(TRACE_NODES_BYTES_MAX - 10)],
        });
        let told = unannounced([(7, long), (1, batch().functions[0].1.clone())].into(), &mut announced);
        assert_eq!(
            told.iter().map(|function| (function.number, function.nodes.len())).collect::<Vec<_>>(),
            [(7, 1), (1, 0)]
        );
        assert_eq!(
            unannounced(batch().functions, &mut announced).iter().map(|function| function.number).collect::<Vec<_>>(),
            [2]
        );
    }
}
