//! Ids and units, each a type of its own so that they cannot be confused.

/// Nanoseconds of a monotonic clock. The caller passes the time in; this crate reads no clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

/// A device of the daemon, by its index in the fleet; the first is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u16);

impl DeviceId {
    /// The lower bits of an id, which count up on one device. At a million ids a second, 2^48 ids
    /// last nine years.
    const COUNTER_BITS: u32 = 48;

    /// The first id that the device's engine assigns to invocations and functions. Ids count up
    /// from there, so [`DeviceId::of_id`] can derive the device from an id.
    pub fn first_id(self) -> u64 {
        u64::from(self.0) << DeviceId::COUNTER_BITS
    }

    /// The device whose engine assigned an id.
    pub fn of_id(id: u64) -> DeviceId {
        DeviceId((id >> DeviceId::COUNTER_BITS) as u16)
    }
}

/// One invocation that passed admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u64);

/// One launch submitted to a device; unique for the life of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaunchId(pub u64);

/// A lane of one device: a group of device queues bound to a set of compute units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(pub u32);

impl LaneId {
    /// The lane that every device has from the start, with all its compute units. It is never
    /// closed.
    pub const DEFAULT: LaneId = LaneId(0);
}

/// The client that a task is charged to: a tenant, or one of its instances. Numbered by the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u32);

/// A device queue (a stream) of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u32);

/// A value of a task's epoch word. A launch carries the epoch it was issued under and exits early
/// once the word is newer. Compared with wrap-around.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Epoch(pub u32);

impl Epoch {
    /// The epoch after this one.
    #[must_use]
    pub fn next(self) -> Epoch {
        Epoch(self.0.wrapping_add(1))
    }

    /// An epoch that is not reached by raising this one. A launch that carries it never exits
    /// early, whatever its kernel compares.
    #[must_use]
    pub fn out_of_reach(self) -> Epoch {
        Epoch(self.0.wrapping_add(1 << 30))
    }

    /// Whether a launch issued under `self` exits early if the word reads `word`.
    pub fn is_raised_by(self, word: Epoch) -> bool {
        (word.0.wrapping_sub(self.0) as i32) > 0
    }
}

/// The two service classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Class {
    /// Served first (REEF §3).
    RealTime,
    /// Runs on the capacity that real-time tasks leave.
    #[default]
    BestEffort,
}

/// Both classes, the more urgent first.
pub(crate) const CLASSES: [Class; 2] = [Class::RealTime, Class::BestEffort];

impl std::fmt::Display for Class {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Class::RealTime => "real-time",
            Class::BestEffort => "best-effort",
        })
    }
}

/// How urgent a task is: real-time before best-effort, then by the rank that the policy assigned.
/// Less is more urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Urgency {
    /// The class of the task.
    pub class: Class,
    /// Its rank within the class.
    pub rank: u64,
}

impl Urgency {
    /// The highest urgency of a class.
    pub fn most(class: Class) -> Urgency {
        Urgency { class, rank: 0 }
    }

    /// The lowest urgency of a class.
    pub fn least(class: Class) -> Urgency {
        Urgency { class, rank: u64::MAX }
    }
}

/// How a device can preempt launches it was given (levels as in XSched).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PreemptLevel {
    /// Only stop submitting.
    Block,
    /// Also make queued launches exit at their start.
    Deactivate,
    /// Also stop running blocks.
    Interrupt,
}

/// An offset in a device's memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceOffset(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_tells_its_device() {
        for device in [0, 1, 7, u16::MAX] {
            let first = DeviceId(device).first_id();
            for id in [first, first + 1, first + ((1 << 48) - 1)] {
                assert_eq!(DeviceId::of_id(id), DeviceId(device), "{id:#x}");
            }
        }
        assert_eq!(DeviceId(0).first_id(), 0, "ids of the first device start at 0");
    }

    #[test]
    fn epochs_are_compared_with_wrap_around() {
        let last = Epoch(u32::MAX);
        assert_eq!(last.next(), Epoch(0));
        assert!(last.is_raised_by(last.next()) && !last.next().is_raised_by(last) && !last.is_raised_by(last));
        let word = (0..1000).fold(last, |word, _| word.next());
        assert!(last.is_raised_by(word) && !last.out_of_reach().is_raised_by(word));
    }
}
