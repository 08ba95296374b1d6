//! The options in the environment variable. Each test runs in its own process, because a process
//! reads the variable only once.

use crate::gpu::{Gpu, code, cuda, load, ok};
use std::process::Command;

/// The environment variable that tells a child process which part to run.
const PART: &str = "STAND_IN_TEST_PART";

/// The options of a process, the name of the part it runs, and the part.
type Part = (&'static str, &'static str, fn());

const PARTS: [Part; 8] = [
    ("memory=8M", "out_of_memory", || {
        let _gpu = Gpu::new();
        let (mut at, mut total) = (0, 0usize);
        ok!(cuMemGetInfo_v2(&mut 0 => *mut usize, &mut total => *mut usize));
        assert_eq!(total, 8 << 20);
        ok!(cuMemAlloc_v2(&mut at => *mut u64, 6 << 20 => usize));
        assert_eq!(cuda!(cuMemAlloc_v2(&mut 0 => *mut u64, 3 << 20 => usize)), code::OUT_OF_MEMORY);
        ok!(cuMemFree_v2(at => u64));
        ok!(cuMemAlloc_v2(&mut at => *mut u64, 8 << 20 => usize));
    }),
    ("ptx=6.4,sm=75", "old_driver", || {
        let _gpu = Gpu::new();
        assert_eq!(load(".version 6.5\n.target sm_75\n.address_size 64\n").1, code::UNSUPPORTED_PTX);
        assert_eq!(load(".version 6.4\n.target sm_75\n.address_size 64\n").1, code::OK);
        assert_eq!(load(".version 6.4\n.target sm_80\n.address_size 64\n").1, code::INVALID_PTX);
    }),
    ("exclusive", "exclusive", || {
        ok!(cuInit(0 => u32));
        assert_eq!(cuda!(cuDevicePrimaryCtxRetain(&mut 0 => *mut u64, 0 => i32)), code::DEVICE_UNAVAILABLE);
        let mut mode = -1;
        ok!(cuDeviceGetAttribute(&mut mode => *mut i32, 20 => i32, 0 => i32));
        assert_eq!(mode, 3);
    }),
    ("devices=0", "no_device", || assert_eq!(cuda!(cuInit(0 => u32)), code::NO_DEVICE)),
    ("devices=2", "two_devices", || {
        let gpu = Gpu::new();
        let mut context = 0;
        ok!(cuCtxCreate_v2(&mut context => *mut u64, 0 => u32, 1 => i32));
        let mut device = -1;
        ok!(cuCtxGetDevice(&mut device => *mut i32));
        assert_eq!((device, context == gpu.context), (1, false));
    }),
    ("fail=cuMemAlloc_v2@2,fail=cuStreamSynchronize@1:719", "failures", || {
        let gpu = Gpu::new();
        let mut at = 0;
        ok!(cuMemAlloc_v2(&mut at => *mut u64, 4 => usize));
        assert_eq!(cuda!(cuMemAlloc_v2(&mut at => *mut u64, 4 => usize)), code::OUT_OF_MEMORY);
        ok!(cuMemAlloc_v2(&mut at => *mut u64, 4 => usize));
        assert_eq!(cuda!(cuStreamSynchronize(0 => u64)), code::LAUNCH_FAILED);
        gpu.synchronize(0);
    }),
    ("time=0.05", "time_limit", || {
        let gpu = Gpu::new();
        let (flag, count) = (gpu.words(1, 0), gpu.words(1, 0));
        gpu.launch(gpu.kernel(crate::gpu::HOLD), 0, 1, 1, &[flag, 1, count]);
        assert_eq!(cuda!(cuCtxSynchronize()), code::LAUNCH_TIMEOUT);
    }),
    ("memroy=8M", "mistyped", || assert_eq!(cuda!(cuInit(0 => u32)), code::INVALID_VALUE)),
];

#[test]
fn every_option_has_its_effect() {
    for (options, part, _) in PARTS {
        let test = std::env::current_exe().expect("a test has a path");
        let mut child = Command::new(test);
        child.args(["--exact", "options::part", "--ignored"]).env("ATOLL_STAND_IN_CUDA", options).env(PART, part);
        let output = child.output().expect("this program runs");
        assert!(
            output.status.success(),
            "{options}:\n{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
#[ignore = "a part of another test, which starts it in a process of its own"]
fn part() {
    let name = std::env::var(PART).unwrap_or_default();
    let (_, _, run) = PARTS.iter().find(|(_, part, _)| *part == name).expect("a part of that name");
    run();
}

#[test]
fn the_driver_version_is_available_before_initialization() {
    let mut version = 0;
    ok!(cuDriverGetVersion(&mut version => *mut i32));
    assert_eq!(version, 13_050);
}
