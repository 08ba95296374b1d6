//! Parameter blocks up to the maximum size, and their relocation.

use super::Make;
use super::rig::{Kernel, Launch, Param, Preempt, Rig, Wanted};
use atoll_core::rng::Rng;
use atoll_core::{DeviceOffset, Epoch};
use atoll_device::{FaultKind, LaunchRecord, LaunchStatus};

/// Values between the two addresses in the parameter block of [`Kernel::Wide`].
const WIDE_VALUES: usize = 510;

fn wide(out: DeviceOffset, values: &[u64], input: DeviceOffset) -> Launch {
    assert_eq!(values.len(), WIDE_VALUES);
    let values = values.iter().map(|value| Param::U64(*value));
    Launch::new(Kernel::Wide, 1, [Param::At(out)].into_iter().chain(values).chain([Param::At(input)]).collect())
}

fn sum(values: &[u64], input: u64) -> u64 {
    values.iter().zip(1..).fold(input, |sum, (value, place)| sum.wrapping_add(value.wrapping_mul(place)))
}

fn random_values(rng: &mut Rng) -> Vec<u64> {
    (0..WIDE_VALUES).map(|_| rng.below(u64::MAX)).collect()
}

/// Runs a launch that is refused, and returns the reason.
fn refusal(rig: &mut Rig, launch: &Launch, change: impl FnOnce(&mut LaunchRecord)) -> String {
    let id = rig.submit_changed(0, launch, change).expect("room");
    let completion = rig.wait();
    assert_eq!((completion.launch, completion.status), (id, LaunchStatus::Failed));
    match rig.device.report(id).and_then(|report| report.fault).expect("a fault").kind {
        FaultKind::Refused { reason } => reason,
        other => panic!("it was not refused: {other:?}"),
    }
}

pub fn the_largest_parameter_block_arrives_whole(make: Make) {
    const ROUNDS: u64 = 30;
    let mut rig = make(Wanted { queue_capacity: 3, ..Wanted::default() });
    let input = rig.alloc(8);
    rig.device.write(input, &77_u64.to_ne_bytes()).expect("memory");
    let outs: Vec<DeviceOffset> = (0..3).map(|_| rig.alloc(16)).collect();
    for seed in 0..ROUNDS {
        let mut rng = Rng::new(seed);
        // As many as the queue holds, with small ones in between.
        let blocks: Vec<Vec<u64>> = (0..3).map(|_| random_values(&mut rng)).collect();
        let small = rng.below(4) as usize;
        for (index, (values, out)) in blocks.iter().zip(&outs).enumerate() {
            let launch = if index == small { Launch::spin(1, *out, 0) } else { wide(*out, values, input) };
            rig.submit(1, &launch).expect("room");
        }
        (0..3).for_each(|_| assert_eq!(rig.wait().status, LaunchStatus::Complete, "seed {seed}"));
        for (index, (values, out)) in blocks.iter().zip(&outs).enumerate().filter(|(index, _)| *index != small) {
            assert_eq!(rig.u64s(*out, 1)[0], sum(values, 77), "seed {seed}, launch {index}");
        }
    }
}

pub fn one_byte_more_than_the_largest_block_is_refused(make: Make) {
    let mut rig = make(Wanted::default());
    let (out, input) = (rig.alloc(16), rig.alloc(8));
    let mut launch = wide(out, &[0; WIDE_VALUES], input);
    assert_eq!(rig.run(0, &launch).status, LaunchStatus::Complete);
    launch.params.push(Param::U8(0));
    let reason = refusal(&mut rig, &launch, |_| {});
    assert_eq!(reason, "4097 bytes of parameters; the kernel declares 4096, and 4096 are the most");
}

pub fn a_relocation_outside_the_parameter_block_is_refused(make: Make) {
    let mut rig = make(Wanted::default());
    let counts = rig.alloc(64);
    let sound = Launch::spin(1, counts, 0);
    for slot in [2, 63, 64, 511] {
        let reason = refusal(&mut rig, &sound, |record| record.address_slots.insert(slot));
        assert!(reason.contains("an address slot lies outside the parameter block"), "slot {slot}: {reason}");
    }
    assert_eq!(rig.run(0, &sound).status, LaunchStatus::Complete);
    assert_eq!(rig.u32(counts), 1);
}

pub fn a_relocation_outside_the_memory_is_refused(make: Make) {
    let mut rig = make(Wanted::default());
    let (out, end) = (rig.alloc(16), rig.device.info().memory_bytes);
    let reason = refusal(&mut rig, &wide(out, &[0; WIDE_VALUES], DeviceOffset(end + 1)), |_| {});
    assert!(reason.contains("holds no valid address"), "{reason}");
    // An offset is not an address.
    let reason = refusal(&mut rig, &wide(out, &[0; WIDE_VALUES], out), |record| {
        record.address_slots = record.address_slots.absolute()
    });
    assert!(reason.contains("holds no valid address"), "{reason}");
}

pub fn addresses_may_be_absolute(make: Make) {
    let mut rig = make(Wanted::default());
    let (out, input) = (rig.alloc(16), rig.alloc(8));
    rig.device.write(input, &5_u64.to_ne_bytes()).expect("memory");
    let values = [3; WIDE_VALUES];
    assert_eq!(rig.run(0, &wide(out, &values, input)).status, LaunchStatus::Complete);
    let [first, address] = rig.u64s(out, 2)[..] else { unreachable!("two were asked for") };
    rig.device.fill(out, 0, 16).expect("memory");
    let out_address = address.wrapping_sub(input.0).wrapping_add(out.0);
    let absolute = wide(DeviceOffset(out_address), &values, DeviceOffset(address));
    rig.submit_changed(0, &absolute, |record| record.address_slots = record.address_slots.absolute()).expect("room");
    assert_eq!(rig.wait().status, LaunchStatus::Complete);
    assert_eq!(rig.u64s(out, 2), [first, address]);
}

pub fn a_large_block_keeps_its_preemption_parameters(make: Make) {
    const BLOCKS: u32 = 40;
    let mut rig = make(Wanted::default());
    let counts = rig.alloc(4 * u64::from(BLOCKS));
    let preempt = rig.preempt(BLOCKS.into());
    let params =
        |value| [Param::At(counts)].into_iter().chain([Param::U64(9); 506]).chain([Param::U64(value)]).collect();
    let launch = |preempt| Launch::new(Kernel::WidePreemptible, BLOCKS, params(1)).preemptible(preempt);
    rig.device.store_epoch(preempt.epoch_word, Epoch(1));
    assert_eq!(rig.run(1, &launch(preempt)).status, LaunchStatus::Evicted);
    assert!(rig.u32s(counts, BLOCKS as usize).iter().all(|count| *count == 0));
    rig.device.fill(preempt.evicted_word, 0, 4).expect("memory");
    assert_eq!(rig.run(1, &launch(Preempt { epoch: Epoch(1), ..preempt })).status, LaunchStatus::Complete);
    assert!(rig.u32s(counts, BLOCKS as usize).iter().all(|count| *count == 1));
}
