//! The devices that a process sees, by `CUDA_VISIBLE_DEVICES` and MIG. Each case runs in a process of
//! its own, because a process reads the variables only once.

use crate::gpu::{code, cuda, ok};
use std::process::Command;

/// Begins a line about a device.
const SEEN: &str = "seen: ";

/// The UUIDs of the second GPU, and of the instances of the first.
const SECOND: &str = "GPU-61746f6c-6c20-7374-616e-642d696e2001";
const INSTANCE_0: &str = "MIG-61746f6c-6c20-7374-616e-642d696e4100";
const INSTANCE_1: &str = "MIG-61746f6c-6c20-7374-616e-642d696e4200";

/// The devices that a process sees: their names, units, and whether they have a UUID of their own.
fn seen(options: &str, list: Option<&str>) -> Vec<String> {
    let mut child = Command::new(std::env::current_exe().expect("a test has a path"));
    child.args(["--exact", "visible::part", "--ignored", "--nocapture"]).env("ATOLL_STAND_IN_CUDA", options);
    match list {
        Some(list) => child.env("CUDA_VISIBLE_DEVICES", list),
        None => child.env_remove("CUDA_VISIBLE_DEVICES"),
    };
    let output = child.output().expect("this program runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{options} {list:?}:\n{said}{}", String::from_utf8_lossy(&output.stderr));
    said.lines().filter_map(|line| Some(line.split_once(SEEN)?.1.to_owned())).collect()
}

#[test]
fn the_list_chooses_gpus_by_number_and_uuid() {
    let gpus = ["0: 8 units", "1: 8 units"];
    for (list, expected) in [
        (None, &gpus[..]),
        (Some("1,0"), &["1: 8 units", "0: 8 units"]),
        (Some(SECOND), &gpus[1..]),
        (Some("GPU-61746f6c-6c20-7374-616e-642d696e2001, 0"), &["1: 8 units", "0: 8 units"]),
        (Some("0,7,1"), &gpus[..1]),
        (Some("GPU-6174"), &[]),
        (Some(""), &[]),
    ] {
        assert_eq!(seen("devices=2,units=8", list), expected, "{list:?}");
    }
}

#[test]
fn a_process_sees_one_mig_instance() {
    let (first, second) = (["0 MIG 0: 4 units, its own UUID"], ["0 MIG 1: 4 units, its own UUID"]);
    let both = format!("{INSTANCE_1},{INSTANCE_0}");
    let beside = format!("1,{INSTANCE_1}");
    for (list, expected) in [
        (None, &first[..]),
        (Some("0"), &first),
        (Some(INSTANCE_1), &second),
        (Some(both.as_str()), &second),
        (Some(beside.as_str()), &second),
        (Some("1"), &["1: 8 units"]),
    ] {
        assert_eq!(seen("devices=2,units=8,mig=2", list), expected, "{list:?}");
    }
}

#[test]
#[ignore = "a part of other tests, which start it in a process of its own"]
#[allow(clippy::print_stdout, reason = "the other tests read it")]
fn part() {
    match cuda!(cuInit(0 => u32)) {
        code::NO_DEVICE => return,
        other => assert_eq!(other, code::OK),
    }
    let mut count = 0;
    ok!(cuDeviceGetCount(&mut count => *mut i32));
    for device in 0..count {
        let (mut name, mut units, mut uuids) = ([0u8; 64], 0, [[0u8; 16]; 2]);
        ok!(cuDeviceGetName(name.as_mut_ptr() => *mut u8, 63 => i32, device => i32));
        ok!(cuDeviceGetAttribute(&mut units => *mut i32, 16 => i32, device => i32));
        ok!(cuDeviceGetUuid(uuids[0].as_mut_ptr() => *mut u8, device => i32));
        ok!(cuDeviceGetUuid_v2(uuids[1].as_mut_ptr() => *mut u8, device => i32));
        let name = String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned();
        let short = name.replace("Atoll stand-in ", "").replace(" (host CPU, no GPU)", "");
        let own = if uuids[0] == uuids[1] { "" } else { ", its own UUID" };
        println!("{SEEN}{short}: {units} units{own}");
    }
}
