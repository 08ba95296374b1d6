//! Divides the CPU time of a tenant's executors among the tenant's accounts. Pure.
//!
//! The kernel counts CPU time for a process and not for a function. The time that it counted since
//! the last division is divided in proportion to the times that blocks ran, as the executor reports
//! them; if it reports no time, in proportion to launches. So a report decides how the bill is
//! divided among the functions of a tenant, and not how high it is. CPU time between launches is
//! added to the next launches.

use std::ops::AddAssign;

/// The CPU time of a tenant's executors.
#[derive(Debug, Default)]
pub(crate) struct CpuBill {
    /// The kernel's count at the last division, in nanoseconds.
    counted_ns: u64,
    /// The part of the count that is in no account yet, in nanoseconds.
    open_ns: u128,
}

/// The reports for an account that no division has used yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reported {
    /// Time that blocks ran, summed over compute units, in nanoseconds.
    pub(crate) unit_ns: u128,
    /// Launches that ended.
    pub(crate) launches: u64,
}

/// The part of an account's reports by which CPU time was divided.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Divided {
    unit_ns: u128,
    launches: u64,
}

impl Divided {
    /// The part of the sums of all reports that no division has used.
    pub(crate) fn rest(&self, unit_ns: u128, launches: u64) -> Reported {
        Reported { unit_ns: unit_ns.saturating_sub(self.unit_ns), launches: launches.saturating_sub(self.launches) }
    }

    /// Notes that a division used `reported`, except for the part that it kept.
    pub(crate) fn add(&mut self, reported: Reported, part: Part) {
        self.unit_ns += reported.unit_ns.saturating_sub(part.kept_ns);
        self.launches += reported.launches;
    }
}

impl AddAssign for Divided {
    fn add_assign(&mut self, other: Divided) {
        self.unit_ns += other.unit_ns;
        self.launches += other.launches;
    }
}

/// The result of a division for one account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    /// CPU time in nanoseconds.
    pub(crate) cpu_ns: u128,
    /// Reported time that the next division uses.
    pub(crate) kept_ns: u128,
}

impl CpuBill {
    /// Takes the kernel's count of all CPU time so far, and divides the part that is in no account
    /// yet. Returns the parts in the order of `reported`. The count may be older than the reports by
    /// up to `lag_ns`, so up to that much reported time is kept for the next division if there is no
    /// CPU time for it yet. A count that is lower than an earlier one changes nothing.
    pub(crate) fn divide(&mut self, counted_ns: u64, lag_ns: u128, reported: &[Reported]) -> Vec<Part> {
        self.open_ns += u128::from(counted_ns.saturating_sub(self.counted_ns));
        self.counted_ns = self.counted_ns.max(counted_ns);
        let unit_ns: u128 = reported.iter().map(|of| of.unit_ns).sum();
        let launches: u128 = reported.iter().map(|of| u128::from(of.launches)).sum();
        let (open_ns, kept_ns) = (self.open_ns, unit_ns.saturating_sub(self.open_ns).min(lag_ns));
        let part = |of: &Reported| {
            let weight = if unit_ns > 0 { of.unit_ns } else { of.launches.into() };
            let all = if unit_ns > 0 { unit_ns } else { launches };
            Part { cpu_ns: portion(open_ns, weight, all), kept_ns: portion(kept_ns, of.unit_ns, unit_ns) }
        };
        let parts: Vec<Part> = reported.iter().map(part).collect();
        self.open_ns -= parts.iter().map(|part| part.cpu_ns).sum::<u128>();
        parts
    }

    /// Takes the time that is in no account, for a tenant without functions.
    pub(crate) fn take_open(&mut self) -> u128 {
        std::mem::take(&mut self.open_ns)
    }
}

/// `weight / all` of `whole`, rounded down; 0 of nothing.
fn portion(whole: u128, weight: u128, all: u128) -> u128 {
    whole.saturating_mul(weight).checked_div(all).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(unit_ns: u128) -> Reported {
        Reported { unit_ns, launches: 1 }
    }

    fn cpu(parts: &[Part]) -> Vec<u128> {
        parts.iter().map(|part| part.cpu_ns).collect()
    }

    #[test]
    fn the_kernels_count_is_divided_by_what_was_reported() {
        let mut bill = CpuBill::default();
        assert_eq!(cpu(&bill.divide(900, 0, &[time(100), time(200)])), [300, 600]);
        assert_eq!(cpu(&bill.divide(1000, 0, &[time(7), time(0)])), [100, 0]);
        // An older count changes nothing.
        assert_eq!(cpu(&bill.divide(500, 0, &[time(7)])), [0]);
        assert_eq!(cpu(&bill.divide(1001, 0, &[time(7)])), [1]);
    }

    #[test]
    fn without_reported_time_launches_decide() {
        let mut bill = CpuBill::default();
        let launches = |launches| Reported { unit_ns: 0, launches };
        assert_eq!(cpu(&bill.divide(400, 0, &[launches(1), launches(3)])), [100, 300]);
    }

    #[test]
    fn time_between_launches_is_that_of_the_next_ones() {
        let mut bill = CpuBill::default();
        assert_eq!(cpu(&bill.divide(50, 0, &[Reported::default()])), [0]);
        assert_eq!(cpu(&bill.divide(60, 0, &[time(5)])), [60]);
        assert_eq!(cpu(&bill.divide(90, 0, &[])), []);
        assert_eq!((bill.take_open(), bill.take_open()), (30, 0));
    }

    #[test]
    fn a_count_that_is_late_finds_what_it_belongs_to() {
        let mut bill = CpuBill::default();
        let first = bill.divide(0, 100, &[time(40), time(20)]);
        assert_eq!(first, [Part { cpu_ns: 0, kept_ns: 40 }, Part { cpu_ns: 0, kept_ns: 20 }]);
        let kept = first.iter().map(|part| Reported { unit_ns: part.kept_ns, launches: 0 });
        assert_eq!(cpu(&bill.divide(90, 100, &kept.collect::<Vec<_>>())), [60, 30]);
        // No more than the lag is kept: who reports too much has no claim on later time.
        let boast = bill.divide(90, 100, &[time(1 << 60), time(1 << 60)]);
        assert_eq!(boast.iter().map(|part| part.kept_ns).collect::<Vec<_>>(), [50, 50]);
    }

    #[test]
    fn nothing_is_lost_by_rounding() {
        let mut bill = CpuBill::default();
        let mut sum = 0;
        for step in 1..1000_u64 {
            let reported = [time(3), time(step.into()), time(11)];
            sum += bill.divide(step * 7, 0, &reported).iter().map(|part| part.cpu_ns).sum::<u128>();
        }
        assert!(bill.open_ns < 3);
        assert_eq!(sum + bill.open_ns, 999 * 7);
    }
}
