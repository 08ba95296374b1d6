//! Chooses the device onto which a function is loaded when it is deployed: the emptiest suitable
//! one.

use crate::DeviceId;

/// The state of a device when a function is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The device.
    pub device: DeviceId,
    /// Bytes of the constants and code of the functions on it. Shared constants count once.
    pub bytes: u64,
    /// Whether it can serve the function: it can run the function's code and is not lost.
    pub suits: bool,
}

/// The suitable device with the fewest bytes on it; ties go to the lowest id. `None` if no device
/// is suitable.
pub fn emptiest(candidates: &[Candidate]) -> Option<DeviceId> {
    candidates
        .iter()
        .filter(|candidate| candidate.suits)
        .min_by_key(|candidate| (candidate.bytes, candidate.device))
        .map(|found| found.device)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(device: u16, bytes: u64, suits: bool) -> Candidate {
        Candidate { device: DeviceId(device), bytes, suits }
    }

    #[test]
    fn the_emptiest_suitable_device_is_chosen_and_ties_go_to_the_lowest_id() {
        let cases: [(&[Candidate], Option<u16>); 5] = [
            (&[], None),
            (&[candidate(0, 0, false)], None),
            (&[candidate(0, 5, true), candidate(1, 4, true), candidate(2, 9, true)], Some(1)),
            (&[candidate(2, 4, true), candidate(1, 4, true)], Some(1)),
            (&[candidate(0, 0, false), candidate(1, u64::MAX, true)], Some(1)),
        ];
        for (candidates, expected) in cases {
            assert_eq!(emptiest(candidates), expected.map(DeviceId), "{candidates:?}");
        }
    }
}
