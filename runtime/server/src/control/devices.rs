//! The requests `Devices` and `Drain` (`atoll device`): report the devices, and stop or resume
//! sending requests to one.

use super::Control;
use super::refusal::{OrRefuse, bad_request};
use super::requests::{Answered, plain};
use crate::identity::Principal;
use atoll_control::{Answer, DeviceCondition, DeviceReport, DeviceWork, DevicesReport};
use atoll_engine::{Class, EngineStatistics};
use atoll_fleet::{DeviceState, FleetStatus};

impl Control {
    pub(super) async fn devices(&self, principal: &Principal) -> Answered {
        let statistics = self.engine_statistics().await?;
        let status = self.app.engine.devices_state();
        plain(Answer::Devices(report(&statistics, &status, principal.sees_all_tenants)))
    }

    pub(super) fn drain(&self, principal: &Principal, device: &str, drained: bool) -> Answered {
        let refuse = |denial: &_| self.app.refuse(denial, principal, Class::BestEffort);
        principal.may_operate().inspect_err(refuse).or_refuse()?;
        self.app.engine.set_drained(device, drained).map_err(|error| bad_request(error.to_string()))?;
        tracing::info!(device, "{}", if drained { "drained" } else { "resumed" });
        plain(Answer::Done)
    }
}

/// The report about the devices. Omits the work of other tenants unless the peer `sees_all`.
pub(crate) fn report(statistics: &[EngineStatistics], status: &FleetStatus, sees_all: bool) -> DevicesReport {
    let states = status.devices.iter().copied().chain(std::iter::repeat(DeviceState::default()));
    DevicesReport {
        policy: status.policy.map(str::to_owned),
        waiting: sees_all.then_some(status.waiting),
        devices: statistics.iter().zip(states).map(|(engine, state)| device(engine, state, sees_all)).collect(),
    }
}

fn device(engine: &EngineStatistics, state: DeviceState, sees_all: bool) -> DeviceReport {
    let work = DeviceWork {
        memory_bytes: engine.device.memory_total_bytes,
        memory_used_bytes: engine.device.memory_used_bytes,
        functions: engine.functions.len(),
        invocations: engine.functions.iter().map(|function| function.running + function.in_queue).sum(),
        placed: state.dispatched,
        moved: state.moved,
    };
    DeviceReport {
        device: engine.device.name.clone(),
        state: match (&engine.device.lost, state) {
            (Some(_), _) | (None, DeviceState { is_lost: true, .. }) => DeviceCondition::Lost,
            (None, DeviceState { is_drained: true, .. }) => DeviceCondition::Drained,
            _ if engine.device.is_unready => DeviceCondition::Unready,
            _ => DeviceCondition::Ready,
        },
        lost: engine.device.lost.clone(),
        compute_units: engine.device.compute_units,
        work: sees_all.then_some(work),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_engine::DeviceStatistics;

    #[test]
    fn states_are_told_to_all_and_work_to_those_who_see_all_tenants() {
        let engine = |name: &str, lost: Option<&str>| EngineStatistics {
            device: DeviceStatistics { name: name.into(), lost: lost.map(str::to_owned), ..Default::default() },
            ..EngineStatistics::default()
        };
        let statistics = [engine("host:0", None), engine("host:1", None), engine("host:2", Some("gone"))];
        let drained = DeviceState { is_drained: true, dispatched: 3, ..DeviceState::default() };
        let status = FleetStatus {
            policy: Some("cost"),
            waiting: 5,
            devices: vec![DeviceState::default(), drained, DeviceState::default()],
            ..FleetStatus::default()
        };
        let told = report(&statistics, &status, true);
        let states: Vec<_> = told.devices.iter().map(|device| device.state).collect();
        assert_eq!(states, [DeviceCondition::Ready, DeviceCondition::Drained, DeviceCondition::Lost]);
        assert_eq!((told.waiting, told.devices[1].work.map(|work| work.placed)), (Some(5), Some(3)));
        let told = report(&statistics, &status, false);
        assert_eq!((told.waiting, told.devices[1].work, told.devices[1].state), (None, None, DeviceCondition::Drained));
    }
}
