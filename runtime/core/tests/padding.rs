//! The bound on how many run beside one launch.

use atoll_core::LaunchProfile;
use atoll_core::limits::PADS_MAX;
use atoll_core::padding::Padding;

#[test]
fn no_more_run_beside_a_launch_than_it_has_slots_for() {
    let single = LaunchProfile::new(1, [100]);
    let mut padding = Padding::of(&single, 60);
    assert_eq!((0..60).filter_map(|_| padding.take(&single, 0)).count(), PADS_MAX);
    assert!(!padding.has_room());
}
