//! Limits of co-scheduled launches.

use atoll_core::LaunchProfile;
use atoll_core::limits::{PADS_MAX, SHARED_PARAMS_BYTES_MAX};
use atoll_core::padding::Padding;

#[test]
fn a_launch_is_padded_by_no_more_launches_than_it_has_slots() {
    let single = LaunchProfile::new(1, [100]);
    let mut padding = Padding::of(&single, 60);
    assert_eq!((0..60).filter_map(|_| padding.take(&single, 0)).count(), PADS_MAX);
    assert!(!padding.has_room());
}

#[test]
fn parameters_of_a_fully_padded_launch_fit_a_parameter_block() {
    const SLOT_BYTES: u32 = 16;
    let slots = 1 + PADS_MAX as u32;
    assert_eq!(slots * SLOT_BYTES + SHARED_PARAMS_BYTES_MAX, 4096);
}
