//! The decisions of every policy on recorded seeds, as digests. A change of the pool's indexes or
//! layout must not change them; a change of a policy does, and the failure prints the new digest.

use super::{indexes, random};
use crate::placement::*;

/// Digests of all actions, on a small pool with faults and on one with many functions.
const DIGESTS: [(&str, u64, u64); 8] = [
    ("cost", 0x8B2D_7C41_FF55_949F, 0xF1CD_7126_49F5_1DAF),
    ("round-robin", 0x0A00_5F85_3249_FB8A, 0x4A9B_FEA8_0E1C_FA07),
    ("balance", 0x92AD_57E2_E91F_6EC2, 0x4BC1_33FE_162C_AD88),
    ("srtf", 0x0F63_EAFA_9C4C_8C9A, 0xCDED_6F57_5D7A_A43E),
    ("mlfqs", 0xD04C_FABD_9F56_FBE0, 0x0B0D_65DE_3F3D_A49B),
    ("exclusive", 0x7B5B_F440_6755_CFF8, 0xDA69_5CA5_7C7B_29FF),
    ("affinity", 0x504D_8689_E174_9F79, 0x377B_D00C_5142_1863),
    ("static", 0xD979_FE26_FB10_7052, 0xAD71_6C74_AB7F_1674),
];
const SEEDS: std::ops::Range<u64> = 1..11;
const EVENTS: usize = 1000;

/// FNV-1a over the numbers of actions.
fn digest(actions: &[PoolAction], before: u64) -> u64 {
    let group = |group: Option<GroupId>| group.map_or(u64::MAX, |group| u64::from(group.0));
    actions.iter().fold(before, |before, action| {
        let numbers = match *action {
            PoolAction::Dispatch { request, device } => [0, request.0, u64::from(device.0), 0],
            PoolAction::Reject { request, .. } => [1, request.0, 0, 0],
            PoolAction::Load { function, device } => [2, u64::from(function.0), u64::from(device.0), 0],
            PoolAction::Unload { function, device } => [3, u64::from(function.0), u64::from(device.0), 0],
            PoolAction::Move { device, from, to } => [4, u64::from(device.0), group(from), u64::from(to.0)],
        };
        numbers.iter().fold(before, |hash, number| (hash ^ number).wrapping_mul(0x0100_0000_01B3))
    })
}

#[test]
fn decisions_stay_as_recorded() {
    let mut found = Vec::new();
    for entry in PLACEMENTS {
        let (mut small, mut many) = (0xCBF2_9CE4_8422_2325, 0xCBF2_9CE4_8422_2325);
        for seed in SEEDS {
            let mut run = random::Run::new(entry.name, seed);
            (0..EVENTS).for_each(|_| run.step());
            small = digest(&run.world.log, small);
            let mut run = indexes::Run::new(entry.name, seed);
            (0..EVENTS).for_each(|event| run.step(event % 500 < 300));
            many = digest(&run.world.log, many);
        }
        found.push((entry.name, small, many));
    }
    assert_eq!(found, DIGESTS);
}
