//! Chunks: the blocks that compute units report to have run.

use super::Make;
use super::rig::{Launch, Rig, Wanted};
use atoll_core::{LaunchId, QueueId};
use atoll_device::{ChunkEnd, ChunkRecord, Completion, ComputeUnitUse, LaunchStatus};
use std::collections::HashMap;

const UNITS: u32 = 3;

/// Minimum rounds, and the limit for waiting until a long launch was stopped: that needs both sides
/// to have a CPU at the right moment.
const ROUNDS_MIN: usize = 20;
const ROUNDS_MAX: usize = 500;

/// One round: submits long launches that are stopped for short ones.
fn round(rig: &mut Rig, ends: &mut Vec<(Completion, u64)>) {
    let (long, short) = (rig.alloc(2000 * 4), rig.alloc(7 * 4));
    let preempt = rig.preempt(2000);
    let mut blocks: HashMap<LaunchId, u64> = HashMap::new();
    blocks.insert(rig.submit(1, &Launch::spin_preemptible(2000, long, 2500, preempt)).expect("room"), 2000);
    for _ in 0..3 {
        blocks.insert(rig.submit(0, &Launch::spin(7, short, 500)).expect("room"), 7);
        let end = rig.wait();
        ends.push((end, blocks[&end.launch]));
    }
    let end = rig.wait();
    ends.push((end, blocks[&end.launch]));
}

/// Every block is in exactly one chunk, chunks of a compute unit do not overlap, and their times
/// sum up to the time of the launches and of the device.
pub fn compute_units_report_the_chunks_they_ran(make: Make) {
    let mut rig = make(Wanted { compute_units: UNITS, queue_capacity: 4 });
    let (mut chunks, mut ends): (Vec<ChunkRecord>, Vec<(Completion, u64)>) = (Vec::new(), Vec::new());
    let was_stopped = |chunks: &[ChunkRecord]| chunks.iter().any(|chunk| chunk.end == ChunkEnd::Stopped);
    for count in 0..ROUNDS_MAX {
        if count >= ROUNDS_MIN && was_stopped(&chunks) {
            break;
        }
        round(&mut rig, &mut ends);
        let mut own = 0;
        let lost = rig.device.take_chunks(u64::MAX, &mut |_, chunk| {
            own += 1;
            chunks.push(chunk);
        });
        assert!(own > 0 && lost == 0, "{own} chunks, {lost} lost");
    }
    let units: Vec<Vec<&ChunkRecord>> =
        (0..UNITS).map(|unit| chunks.iter().filter(|chunk| chunk.unit == unit).collect()).collect();
    assert_eq!(units.iter().map(Vec::len).sum::<usize>(), chunks.len(), "units are numbered from 0");
    for unit in &units {
        assert!(unit.iter().all(|chunk| chunk.began_ns <= chunk.ended_ns));
        assert!(
            unit.windows(2).all(|pair| pair[0].ended_ns <= pair[1].began_ns),
            "chunks of a compute unit do not overlap"
        );
    }
    for (end, blocks) in &ends {
        assert_eq!(end.status, LaunchStatus::Complete);
        let own: Vec<_> = chunks.iter().filter(|chunk| chunk.launch == end.launch).collect();
        assert_eq!(own.iter().map(|chunk| chunk.blocks).sum::<u64>(), *blocks);
        assert_eq!(own.iter().map(|chunk| chunk.ended_ns - chunk.began_ns).sum::<u64>(), end.busy_ns);
        assert!(own.iter().all(|chunk| end.started_ns <= chunk.began_ns && chunk.ended_ns <= end.ended_ns));
        let queue = QueueId(if *blocks == 7 { 0 } else { 1 });
        assert!(own.iter().all(|chunk| chunk.queue == queue));
    }
    assert!(was_stopped(&chunks), "some long launch was stopped for a short one");
    let counts = |unit: &Vec<&ChunkRecord>| ComputeUnitUse {
        chunks: unit.len() as u64,
        busy_ns: unit.iter().map(|chunk| chunk.ended_ns - chunk.began_ns).sum(),
    };
    assert_eq!(rig.device.compute_units(), units.iter().map(counts).collect::<Vec<_>>());
    assert_eq!(rig.device.compute_units().iter().map(|unit| unit.busy_ns).sum::<u64>(), rig.device.busy_ns().unwrap());
}
