//! Ids and units. None can be mistaken for another.

/// Monotonic nanoseconds, passed in by whoever drives the core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

/// A device of the daemon, by its place in the fleet: the first one is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u16);

impl DeviceId {
    /// The bits of an id that count on one device. 2^48 invocations at a million a second take nine
    /// years.
    const COUNTER_BITS: u32 = 48;

    /// The first id that the device's engine gives to invocations and functions; it counts on from
    /// there, so an id says which device it belongs to.
    pub fn first_id(self) -> u64 {
        u64::from(self.0) << DeviceId::COUNTER_BITS
    }

    /// The device whose engine gave an id.
    pub fn of_id(id: u64) -> DeviceId {
        DeviceId((id >> DeviceId::COUNTER_BITS) as u16)
    }
}

/// One invocation that passed admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u64);

/// One launch handed to a device; unique for the life of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaunchId(pub u64);

/// A lane of one device: a group of device queues that is bound to a set of compute units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(pub u32);

impl LaneId {
    /// The lane that every device has from the beginning, of all its compute units. It is never
    /// closed.
    pub const DEFAULT: LaneId = LaneId(0);
}

/// Who is charged for a task: a tenant, or one of its instances. The engine gives the numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u32);

/// A device queue (a stream) of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u32);

/// The value a task's epoch word must not pass for its launches to run (design D5). Compared with
/// wrap-around.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Epoch(pub u32);

impl Epoch {
    /// The next one.
    #[must_use]
    pub fn next(self) -> Epoch {
        Epoch(self.0.wrapping_add(1))
    }

    /// One that raising this does not reach: a launch that carries it stays, whatever its kernel
    /// looks at.
    #[must_use]
    pub fn out_of_reach(self) -> Epoch {
        Epoch(self.0.wrapping_add(1 << 30))
    }

    /// Whether a launch issued under `self` must leave when the word reads `word`.
    pub fn is_raised_by(self, word: Epoch) -> bool {
        (word.0.wrapping_sub(self.0) as i32) > 0
    }
}

/// The two service classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Class {
    /// Gets the device first.
    RealTime,
    /// Fills whatever is left.
    #[default]
    BestEffort,
}

impl std::fmt::Display for Class {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Class::RealTime => "real-time",
            Class::BestEffort => "best-effort",
        })
    }
}

/// How urgent a task is: real-time before best-effort, within a class by the rank that the policy
/// gave it. Less is more urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Urgency {
    /// The task's class.
    pub class: Class,
    /// Its rank within that.
    pub rank: u64,
}

impl Urgency {
    /// What nobody of a class exceeds.
    pub fn most(class: Class) -> Urgency {
        Urgency { class, rank: 0 }
    }

    /// What nobody of a class falls short of.
    pub fn least(class: Class) -> Urgency {
        Urgency { class, rank: u64::MAX }
    }
}

/// What a device can do to work it was given (design D4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PreemptLevel {
    /// Stop submitting.
    Block,
    /// Also make queued kernels leave.
    Deactivate,
    /// Also stop running ones.
    Interrupt,
}

/// An offset in a device's memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceOffset(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_says_which_device_gave_it() {
        for device in [0, 1, 7, u16::MAX] {
            let first = DeviceId(device).first_id();
            for id in [first, first + 1, first + ((1 << 48) - 1)] {
                assert_eq!(DeviceId::of_id(id), DeviceId(device), "{id:#x}");
            }
        }
        assert_eq!(DeviceId(0).first_id(), 0, "one device counts as it always did");
    }

    #[test]
    fn epochs_are_compared_around_the_end_of_their_numbers() {
        let last = Epoch(u32::MAX);
        assert_eq!(last.next(), Epoch(0));
        assert!(last.is_raised_by(last.next()) && !last.next().is_raised_by(last) && !last.is_raised_by(last));
        let word = (0..1000).fold(last, |word, _| word.next());
        assert!(last.is_raised_by(word) && !last.out_of_reach().is_raised_by(word));
    }
}
