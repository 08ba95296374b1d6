//! Estimates of service and reload times from measurements.

use super::event::{DeviceKind, Expected};
use crate::ids::Nanos;

/// The newest of many measurements has a weight of one in this many.
const WINDOW: u64 = 8;

/// A mean that follows changes: the mean of the first [`WINDOW`] measurements, then an exponential
/// average. A time known beforehand counts as one measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Estimate {
    mean: u64,
    samples: u64,
}

impl Estimate {
    fn known(time: Option<Nanos>) -> Estimate {
        time.map_or(Estimate::default(), |time| Estimate { mean: time.0, samples: 1 })
    }

    fn learn(&mut self, measured: Nanos) {
        self.samples = (self.samples + 1).min(WINDOW);
        match measured.0.checked_sub(self.mean) {
            Some(longer) => self.mean += longer / self.samples,
            None => self.mean -= (self.mean - measured.0) / self.samples,
        }
    }

    fn get(self) -> Option<Nanos> {
        (self.samples > 0).then_some(Nanos(self.mean))
    }
}

/// Times of a function on each kind of device.
#[derive(Clone, Debug, Default)]
pub(super) struct Times(Vec<(DeviceKind, Estimate, Estimate)>);

impl Times {
    pub(super) fn new(expected: &[(DeviceKind, Expected)]) -> Times {
        let row = |(kind, expected): &(DeviceKind, Expected)| {
            (*kind, Estimate::known(expected.service), Estimate::known(expected.reload))
        };
        Times(expected.iter().map(row).collect())
    }

    fn row(&mut self, kind: DeviceKind) -> &mut (DeviceKind, Estimate, Estimate) {
        let at = self.0.iter().position(|row| row.0 == kind).unwrap_or_else(|| {
            self.0.push((kind, Estimate::default(), Estimate::default()));
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    /// Notes a measured service time. Returns whether the expected time changes.
    pub(super) fn learn_service(&mut self, kind: DeviceKind, measured: Nanos) -> bool {
        let service = &mut self.row(kind).1;
        let before = service.get();
        service.learn(measured);
        service.get() != before
    }

    pub(super) fn learn_reload(&mut self, kind: DeviceKind, measured: Nanos) {
        self.row(kind).2.learn(measured);
    }

    /// Service time on a kind of device; the shortest of the other kinds if it is unknown.
    pub(super) fn service(&self, kind: DeviceKind) -> Option<Nanos> {
        let here = self.0.iter().find(|row| row.0 == kind).and_then(|row| row.1.get());
        here.or_else(|| self.shortest_service())
    }

    /// Whether the service time on a kind of device is known.
    pub(super) fn knows(&self, kind: DeviceKind) -> bool {
        self.0.iter().any(|row| row.0 == kind && row.1.get().is_some())
    }

    /// Reload time on a kind of device; the shortest of the other kinds if it is unknown.
    pub(super) fn reload(&self, kind: DeviceKind) -> Option<Nanos> {
        let here = self.0.iter().find(|row| row.0 == kind).and_then(|row| row.2.get());
        here.or_else(|| self.shortest_reload())
    }

    /// The shortest known reload time.
    pub(super) fn shortest_reload(&self) -> Option<Nanos> {
        self.0.iter().filter_map(|row| row.2.get()).min()
    }

    /// The shortest known service time.
    pub(super) fn shortest_service(&self) -> Option<Nanos> {
        self.0.iter().filter_map(|row| row.1.get()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_start_from_what_is_known_and_follow_what_is_measured() {
        let (gpu, cpu) = (DeviceKind(0), DeviceKind(1));
        let mut times = Times::new(&[(gpu, Expected { service: Some(Nanos(100)), reload: None })]);
        assert_eq!((times.service(gpu), times.reload(gpu)), (Some(Nanos(100)), None));
        assert_eq!(times.service(cpu), Some(Nanos(100)), "the only time known");
        times.learn_service(cpu, Nanos(900));
        assert_eq!((times.service(cpu), times.shortest_service()), (Some(Nanos(900)), Some(Nanos(100))));
        times.learn_service(gpu, Nanos(200));
        assert_eq!(times.service(gpu), Some(Nanos(150)), "the mean of two");
        assert!(!times.learn_service(gpu, Nanos(152)) && times.learn_service(gpu, Nanos(142)), "148 after 150");
        assert_eq!(times.service(gpu), Some(Nanos(148)));
        for _ in 0..100 {
            times.learn_service(gpu, Nanos(1000));
        }
        assert!(times.service(gpu).unwrap().0 > 950, "old times are forgotten");
        times.learn_service(gpu, Nanos(u64::MAX));
        times.learn_service(gpu, Nanos(0));
    }
}
