//! Prices of devices per second, and of the CPU time of CPU stages.

use crate::limits::PRICE_PER_SECOND_MAX;
use atoll_core::graphs::Cost;
use atoll_engine::DeviceId;
use atoll_fleet::device_named;
use std::collections::BTreeMap;

/// The device of CPU stages in reports, and its name in `[prices]`.
pub(crate) const CPU: &str = "cpu";

/// Millionths in a unit of account.
const MILLIONTHS: f64 = 1e6;

/// The price of each device, in millionths of the unit of account per second. The operator chooses
/// the unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Prices {
    /// Indexed by device; 0 for a device without a price.
    per_s: Vec<u64>,
    /// Of a second of CPU time of CPU stages; 0 without a price.
    cpu_per_s: u64,
}

/// Converts a price per second from units of account to millionths.
pub(crate) fn millionths(units: f64) -> Result<u64, String> {
    if !units.is_finite() || !(0.0..=PRICE_PER_SECOND_MAX).contains(&units) {
        return Err(format!("{units} is not a price per second from 0 to {PRICE_PER_SECOND_MAX} units"));
    }
    match (units * MILLIONTHS).round() as u64 {
        0 if units > 0.0 => Err(format!("{units} is below a millionth of a unit per second; choose a smaller unit")),
        price => Ok(price),
    }
}

/// Converts a price from units of account to a [`Cost`]; `None` if it is negative or not finite.
pub(crate) fn price(units: f64) -> Option<Cost> {
    // The conversion saturates at a cost that no request reaches.
    (units.is_finite() && units >= 0.0).then_some(Cost((units * 1e15) as u64))
}

impl Prices {
    /// The prices of these devices. A name without a number, such as `host`, means `host:0`; `cpu`
    /// is the CPU time of CPU stages.
    ///
    /// # Errors
    /// If a name is not that of a device, or two names are of the same device.
    pub(crate) fn of(named: &BTreeMap<String, u64>, devices: &[String]) -> Result<Prices, String> {
        let mut per_s = vec![None; devices.len()];
        for (name, price) in named.iter().filter(|(name, _)| *name != CPU) {
            let Some(device) = device_named(devices, name) else {
                let known = devices.join(", ");
                return Err(format!("{name} is not a device of this daemon, which has {known} and, for stages, {CPU}"));
            };
            let at = usize::from(device.0);
            if per_s[at].replace(*price).is_some() {
                return Err(format!("{} has two prices, one of them as {name}; state one", devices[at]));
            }
        }
        let per_s = per_s.into_iter().map(Option::unwrap_or_default).collect();
        Ok(Prices { per_s, cpu_per_s: named.get(CPU).copied().unwrap_or(0) })
    }

    /// The price of a device, in millionths of the unit of account per second; 0 if it has none.
    pub(crate) fn get(&self, device: DeviceId) -> u64 {
        self.per_s.get(usize::from(device.0)).copied().unwrap_or(0)
    }

    /// The price of CPU stages, in millionths of the unit of account per second of CPU time; 0 if
    /// they have none.
    pub(crate) fn cpu(&self) -> u64 {
        self.cpu_per_s
    }

    /// The price of CPU stages, in units of account per second of CPU time; `None` if they have
    /// none.
    pub(crate) fn cpu_units(&self) -> Option<f64> {
        (self.cpu_per_s > 0).then_some(self.cpu_per_s as f64 / MILLIONTHS)
    }

    /// The price of the device at this index, in units of account per second; `None` if no device
    /// has a price.
    pub(crate) fn units(&self, at: usize) -> Option<f64> {
        let has_any = self.per_s.iter().any(|price| *price > 0);
        has_any.then(|| self.per_s.get(at).copied().unwrap_or(0) as f64 / MILLIONTHS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_those_of_devices_by_name() {
        let devices = ["host:0".to_owned(), "cuda:0".to_owned()];
        let named = |name: &str| BTreeMap::from([(name.to_owned(), 556)]);
        for (name, expected) in [("host:0", [Some(0.000556), Some(0.0)]), ("cuda", [Some(0.0), Some(0.000556)])] {
            let prices = Prices::of(&named(name), &devices).unwrap();
            assert_eq!([0, 1].map(|at| prices.units(at)), expected, "{name}");
        }
        let unknown = Prices::of(&named("cuda:1"), &devices).unwrap_err();
        assert_eq!(unknown, "cuda:1 is not a device of this daemon, which has host:0, cuda:0 and, for stages, cpu");
        let cpu = Prices::of(&named("cpu"), &devices).unwrap();
        assert_eq!((cpu.cpu(), cpu.cpu_units(), cpu.units(0)), (556, Some(0.000556), None));
        assert_eq!(Prices::of(&named("host"), &devices).unwrap().cpu_units(), None);
        let twice = BTreeMap::from([("host".to_owned(), 1), ("host:0".to_owned(), 2)]);
        let refused = Prices::of(&twice, &devices).unwrap_err();
        assert_eq!(refused, "host:0 has two prices, one of them as host:0; state one");
        assert_eq!(Prices::of(&BTreeMap::new(), &devices).unwrap().units(0), None);
    }

    #[test]
    fn half_an_hour_at_the_highest_price_fits() {
        let half_an_hour_ns = 1800 * 1_000_000_000_u64;
        let most = millionths(PRICE_PER_SECOND_MAX).unwrap();
        assert!(half_an_hour_ns.checked_mul(most).is_some());
    }

    #[test]
    fn a_price_is_a_bounded_number_of_millionths() {
        assert_eq!([0.0, 0.000_556, 1.0].map(millionths), [Ok(0), Ok(556), Ok(1_000_000)]);
        for bad in [-1.0, f64::NAN, f64::INFINITY, 1e-9, 10.5] {
            assert!(millionths(bad).is_err(), "{bad}");
        }
    }
}
