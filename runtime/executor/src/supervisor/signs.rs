//! Decides from the supervisor's observations whether an executor hangs, breaks the protocol, or
//! computes without being charged.

use super::TimeLimits;
use atoll_device::LossCause;
use std::time::{Duration, Instant};

/// How often the completion bell may ring between two checks while no completion is waiting. A
/// correct executor causes only a few such rings.
const IDLE_RINGS_MAX: u64 = 20_000;

/// The shortest time without work over which the CPU time of an executor is checked. A correct
/// executor without work sleeps.
const IDLE_WINDOW: Duration = Duration::from_secs(2);

/// CPU time that an executor without work may use: [`IDLE_CPU`], and the time since its last work
/// divided by [`IDLE_CPU_PART`]. A correct executor needs it to unmap memory and for its watchdog.
/// [`IDLE_WINDOW`] alone is not enough: on a busy machine, a thread that steals CPU time may get
/// little of a CPU.
const IDLE_CPU: Duration = Duration::from_secs(2);
const IDLE_CPU_PART: u32 = 20;

/// Memory beyond the allowed bytes that is tolerated, since the system counts whole pages.
const MEMORY_SLACK_BYTES: u64 = 16 << 20;

/// CPU time that a launch may take besides its blocks, for each compute unit: to take the launch,
/// to look for the next one, and to go to sleep.
const LAUNCH_OVERHEAD: Duration = Duration::from_micros(200);

/// CPU time in each window that need not be billed: starting, and loading code.
const UNBILLED: Duration = Duration::from_secs(30);

/// The longest window over which CPU time is compared with billed time: the larger of this, and the
/// time limit of launches multiplied by [`BILL_WINDOW_LAUNCHES`]. Windows end so that the little
/// CPU time of an executor without work does not add up.
const BILL_WINDOW: Duration = Duration::from_secs(3600);
const BILL_WINDOW_LAUNCHES: u32 = 60;

/// A window also ends when its CPU time reaches this multiple of the allowance. Billed time of an
/// earlier window is no credit for a later one.
const BILL_WINDOW_ALLOWANCES: u32 = 8;

/// How much an executor's busy time may exceed the possible time, since its clock may differ.
const CLAIM_SLACK: Duration = Duration::from_secs(1);

/// The supervisor's observations of an executor at one time.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    /// The word that the executor increments while it lives.
    pub(super) beat: u32,
    /// Completions that the engine has taken.
    pub(super) completed: u64,
    /// Whether launches are in flight.
    pub(super) is_busy: bool,
    pub(super) idle_rings: u64,
    /// Number of reports that it announced, and number of reports received.
    pub(super) reports: (u64, u64),
    /// Whether it has reported that it runs.
    pub(super) is_ready: bool,
    /// Due answers: when each was requested, and its time limit.
    pub(super) due: Vec<(Instant, Duration)>,
    /// Busy time of its compute units as it reports it, and the largest possible busy time.
    pub(super) busy: (Duration, Duration),
    /// CPU time of the process, as the operating system accounts for it.
    pub(super) cpu: Duration,
    /// Time of its blocks as its completions report it, for which its tenant is charged; `None` if
    /// blocks do not run on the CPU.
    pub(super) billed: Option<Duration>,
    pub(super) units: u32,
    /// Bytes of shared memory in use, and bytes that may be in use.
    pub(super) memory: (u64, u64),
}

/// The last observed values and the times of their last changes.
#[derive(Debug)]
pub(super) struct Signs {
    beat: (u32, Instant),
    completed: (u64, Instant),
    /// The number of reports received, and when it last changed or was equal to the announced
    /// number.
    reports: (u64, Instant),
    idle_rings: u64,
    /// When the executor was first seen without work, or last checked since, and its CPU time then.
    idle: Option<(Instant, Duration)>,
    /// When it was first seen without work, and its CPU time then.
    idle_since: Option<(Instant, Duration)>,
    /// The start of the window over which CPU time is compared with billed time.
    bill: Option<Bill>,
}

/// The totals of an executor at one time.
#[derive(Clone, Copy, Debug)]
struct Bill {
    at: Instant,
    cpu: Duration,
    billed: Duration,
    completed: u64,
}

impl Signs {
    pub(super) fn new(now: Instant) -> Signs {
        Signs {
            beat: (0, now),
            completed: (0, now),
            reports: (0, now),
            idle_rings: 0,
            idle: None,
            idle_since: None,
            bill: None,
        }
    }

    /// The violation or exceeded time limit, if any.
    pub(super) fn judge(&mut self, now: Instant, seen: &Observed, limits: &TimeLimits) -> Option<LossCause> {
        if seen.beat != self.beat.0 {
            self.beat = (seen.beat, now);
        }
        if seen.completed != self.completed.0 || !seen.is_busy {
            self.completed = (seen.completed, now);
        }
        let (sent, received) = seen.reports;
        if received != self.reports.0 || received == sent {
            self.reports = (received, now);
        }
        self.hang(now, seen, limits).or_else(|| self.violation(now, seen, limits).map(LossCause::ProtocolViolation))
    }

    fn hang(&self, now: Instant, seen: &Observed, limits: &TimeLimits) -> Option<LossCause> {
        let over = |since: Instant, limit: Duration| now.saturating_duration_since(since) > limit;
        if let Some((_, limit)) = seen.due.iter().find(|(since, limit)| over(*since, *limit)) {
            return Some(LossCause::Hung(format!("did not answer within {limit:?}")));
        }
        // An executor does not beat before it runs.
        if seen.is_ready && (seen.is_busy || !seen.due.is_empty()) && over(self.beat.1, limits.hang_after) {
            return Some(LossCause::Hung(format!("showed no sign of life for {:?}", limits.hang_after)));
        }
        over(self.completed.1, limits.launch_within)
            .then(|| LossCause::Hung(format!("ended no launch within {:?}", limits.launch_within)))
    }

    fn violation(&mut self, now: Instant, seen: &Observed, limits: &TimeLimits) -> Option<String> {
        let rings = std::mem::replace(&mut self.idle_rings, seen.idle_rings).abs_diff(seen.idle_rings);
        if rings > IDLE_RINGS_MAX {
            return Some("it rings without completions".to_owned());
        }
        if now.saturating_duration_since(self.reports.1) > limits.answer_within {
            return Some(format!("it announced reports that it did not send within {:?}", limits.answer_within));
        }
        let (claimed, possible) = seen.busy;
        if claimed > possible + CLAIM_SLACK {
            return Some(format!("it reports {claimed:.1?} of work, and at most {possible:.1?} were possible"));
        }
        let (used, allowed) = seen.memory;
        if used > allowed.saturating_add(MEMORY_SLACK_BYTES) {
            let (used, allowed) = (used >> 20, allowed >> 20);
            return Some(format!("it touched {used} MiB of device memory, and its work holds at most {allowed} MiB"));
        }
        self.theft(now, seen).or_else(|| self.evasion(now, seen, limits))
    }

    /// Detects an executor without work that keeps computing.
    fn theft(&mut self, now: Instant, seen: &Observed) -> Option<String> {
        if seen.is_busy || !seen.due.is_empty() || !seen.is_ready {
            (self.idle, self.idle_since) = (None, None);
            return None;
        }
        let theft = |used: Duration, within: Duration| {
            Some(format!("it computed for {used:.1?} within {within:.1?} without a launch"))
        };
        let (first, cpu_first) = *self.idle_since.get_or_insert((now, seen.cpu));
        let (used, within) = (seen.cpu.saturating_sub(cpu_first), now.saturating_duration_since(first));
        if used > IDLE_CPU + within / IDLE_CPU_PART {
            return theft(used, within);
        }
        let (since, cpu_before) = *self.idle.get_or_insert((now, seen.cpu));
        let idle = now.saturating_duration_since(since);
        if idle < IDLE_WINDOW {
            return None;
        }
        let used = seen.cpu.saturating_sub(cpu_before);
        self.idle = Some((now, seen.cpu));
        if used > idle / 2 { theft(used, idle) } else { None }
    }

    /// Detects an executor that computes more than it reports, so that its tenant is charged too
    /// little. Two things explain unreported CPU time: launches in flight report only when they
    /// end, and launches with small blocks have much overhead. CPU time beyond both is a violation.
    fn evasion(&mut self, now: Instant, seen: &Observed, limits: &TimeLimits) -> Option<String> {
        let last = Bill { at: now, cpu: seen.cpu, billed: seen.billed?, completed: seen.completed };
        let first = *self.bill.get_or_insert(last);
        let (cpu, billed) = (last.cpu.saturating_sub(first.cpu), last.billed.saturating_sub(first.billed));
        let launches = u32::try_from(last.completed.saturating_sub(first.completed)).unwrap_or(u32::MAX);
        let allowance = limits.launch_within.saturating_mul(seen.units).saturating_add(UNBILLED);
        let overhead = LAUNCH_OVERHEAD.saturating_mul(launches).saturating_mul(seen.units);
        let explained = allowance.saturating_add(overhead).saturating_add(billed);
        if cpu.saturating_sub(explained) > cpu / 2 {
            let within = now.saturating_duration_since(first.at);
            return Some(format!(
                "it used {cpu:.1?} of CPU time within {within:.1?}, and reports {billed:.1?} for {launches} launches"
            ));
        }
        let longest = BILL_WINDOW.max(limits.launch_within.saturating_mul(BILL_WINDOW_LAUNCHES));
        let is_full = cpu >= allowance.saturating_mul(BILL_WINDOW_ALLOWANCES);
        if is_full || now.saturating_duration_since(first.at) >= longest {
            self.bill = Some(last);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: TimeLimits = TimeLimits {
        hang_after: Duration::from_secs(5),
        answer_within: Duration::from_secs(10),
        load_within: Duration::from_secs(30),
        launch_within: Duration::from_secs(60),
    };

    fn quiet() -> Observed {
        Observed {
            beat: 0,
            completed: 0,
            is_busy: false,
            idle_rings: 0,
            reports: (0, 0),
            is_ready: true,
            due: Vec::new(),
            busy: (Duration::ZERO, Duration::ZERO),
            cpu: Duration::ZERO,
            billed: Some(Duration::ZERO),
            units: 2,
            memory: (0, 0),
        }
    }

    /// Judges an observation every quarter of a second; the second of the first cause, and the
    /// cause.
    fn judge(seconds: u32, observed: impl Fn(Instant, f64) -> Observed) -> Option<(u64, LossCause)> {
        judge_every(0.25, seconds, observed)
    }

    fn judge_every(pause: f64, seconds: u32, observed: impl Fn(Instant, f64) -> Observed) -> Option<(u64, LossCause)> {
        let start = Instant::now();
        let mut signs = Signs::new(start);
        (0..(f64::from(seconds) / pause) as u32).find_map(|step| {
            let at = f64::from(step) * pause;
            let cause = signs.judge(start + Duration::from_secs_f64(at), &observed(start, at), &LIMITS)?;
            Some((at as u64, cause))
        })
    }

    #[test]
    fn an_executor_without_work_may_be_silent_for_ever() {
        assert_eq!(judge(1000, |_, _| quiet()), None);
        // One that works must show that it lives.
        let busy = |beat: fn(f64) -> u32, completed: fn(f64) -> u64| {
            judge(1000, move |_, at| Observed { is_busy: true, beat: beat(at), completed: completed(at), ..quiet() })
        };
        assert_eq!(busy(|at| at as u32, |at| at as u64), None);
        assert!(matches!(busy(|_| 0, |at| at as u64), Some((5, LossCause::Hung(_)))));
        assert!(matches!(busy(|at| at as u32, |_| 0), Some((60, LossCause::Hung(_)))));
        let due =
            judge(1000, |start, at| Observed { due: vec![(start, LIMITS.load_within)], beat: at as u32, ..quiet() });
        assert!(matches!(due, Some((30, LossCause::Hung(_)))), "{due:?}");
    }

    fn violation(observed: impl Fn(f64) -> Observed) -> Option<(u64, String)> {
        judge(1000, |_, at| observed(at)).map(|(at, cause)| match cause {
            LossCause::ProtocolViolation(why) => (at, why),
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn a_count_that_is_impossible_is_a_violation() {
        let busy = |claimed, possible| {
            violation(move |_| Observed {
                busy: (Duration::from_secs(claimed), Duration::from_secs(possible)),
                ..quiet()
            })
        };
        assert_eq!(busy(4, 4), None);
        assert!(busy(9_000_000_000, 4).unwrap().1.contains("of work, and at most 4.0s were possible"));
        let announced = violation(|at| Observed { reports: (3, at.min(3.0) as u64), ..quiet() });
        assert_eq!(announced, None);
        let announced = violation(|_| Observed { reports: (3, 2), ..quiet() }).unwrap();
        assert!(announced.0 == 10 && announced.1.contains("announced reports"), "{announced:?}");
        let rings = violation(|at| Observed { idle_rings: (at * 1e6) as u64, ..quiet() }).unwrap();
        assert!(rings.1.contains("rings without"), "{rings:?}");
    }

    #[test]
    fn touching_memory_that_was_not_granted_is_a_violation() {
        let touched =
            |used: u64, allowed: u64| violation(move |_| Observed { memory: (used << 20, allowed << 20), ..quiet() });
        assert_eq!(touched(116, 100), None);
        assert_eq!(touched(16, 0), None);
        let why = "it touched 117 MiB of device memory, and its work holds at most 100 MiB";
        assert_eq!(touched(117, 100), Some((0, why.to_owned())));
        assert_eq!(violation(|_| Observed { memory: (1 << 40, u64::MAX), ..quiet() }), None);
    }

    #[test]
    fn computing_without_a_launch_is_a_violation() {
        let cpu = |share: f64, is_busy: bool| {
            violation(move |at| Observed {
                cpu: Duration::from_secs_f64(at * share),
                billed: Some(Duration::from_secs_f64(at * share)),
                is_busy,
                beat: at as u32,
                completed: at as u64,
                ..quiet()
            })
        };
        assert_eq!(cpu(0.04, false), None);
        assert_eq!(cpu(1.0, true), None);
        // A thread that steals CPU time and gets 40 % of a CPU.
        let (at, slow) = cpu(0.4, false).unwrap();
        assert!((5..8).contains(&at) && slow.contains("without a launch"), "{at} {slow}");
        let stolen = cpu(1.0, false).unwrap();
        assert_eq!(stolen, (2, "it computed for 2.0s within 2.0s without a launch".to_owned()));
    }

    #[test]
    fn computing_more_than_is_billed_is_a_violation() {
        // Two compute units, of which each runs launches of 10 ms one after another.
        let working = |billed: f64, launches: f64| {
            violation(move |at| Observed {
                cpu: Duration::from_secs_f64(at * 2.0),
                billed: Some(Duration::from_secs_f64(at * 2.0 * billed)),
                completed: (at * launches) as u64,
                beat: at as u32,
                is_busy: true,
                ..quiet()
            })
        };
        assert_eq!(working(1.0, 200.0), None);
        assert_eq!(working(0.6, 200.0), None);
        // Empty kernels are nearly all overhead.
        assert_eq!(working(0.01, 10_000.0), None);
        let evaded = working(0.01, 100.0).unwrap();
        assert!(evaded.0 > 100 && evaded.1.contains("of CPU time within"), "{evaded:?}");
        // The CPU time of a GPU's executor is the driver's.
        let driver = |at: f64| Observed { cpu: Duration::from_secs_f64(at), billed: None, is_busy: true, ..quiet() };
        let driver = violation(|at| Observed { beat: at as u32, completed: at as u64, ..driver(at) });
        assert_eq!(driver, None);
    }

    #[test]
    fn an_honest_life_is_no_credit_for_ever_and_idling_does_not_add_up() {
        // Two compute units that report all their work for half a day, and then none.
        let days = 0.5 * 86_400.0;
        let honest_then_not = judge_every(4.0, 86_400, |_, at| Observed {
            cpu: Duration::from_secs_f64(at * 2.0),
            billed: Some(Duration::from_secs_f64(at.min(days) * 2.0)),
            completed: (at * 10.0) as u64,
            beat: at as u32,
            is_busy: true,
            ..quiet()
        });
        let (at, cause) = honest_then_not.unwrap();
        let after = at as f64 - days;
        assert!((0.0..3600.0).contains(&after) && matches!(cause, LossCause::ProtocolViolation(_)), "{after} {cause}");
        // A hundredth of a CPU for a month, without one launch.
        let idle =
            judge_every(60.0, 30 * 86_400, |_, at| Observed { cpu: Duration::from_secs_f64(at * 0.01), ..quiet() });
        assert_eq!(idle, None);
    }
}
