//! Device memory and constants: transfers, their bounds, and what kernels see of them.

use super::Make;
use super::rig::{Kernel, Launch, Param, Wanted};
use atoll_core::DeviceOffset;
use atoll_device::{DeviceError, LaunchStatus};

pub fn memory_is_bounded(make: Make) {
    let mut rig = make(Wanted::default());
    let end = rig.device.info().memory_bytes;
    let device = &mut rig.device;
    device.write(DeviceOffset(end - 4), &[1, 2, 3, 4]).unwrap();
    device.fill(DeviceOffset(end - 2), 9, 2).unwrap();
    let mut bytes = [0; 4];
    device.read(DeviceOffset(end - 4), &mut bytes).unwrap();
    assert_eq!(bytes, [1, 2, 9, 9]);
    device.fill(DeviceOffset(end), 9, 0).unwrap();
    for at in [end - 3, end, u64::MAX - 1] {
        let at = DeviceOffset(at);
        assert!(matches!(device.write(at, &bytes), Err(DeviceError::OutOfRange { .. })));
        assert!(matches!(device.read(at, &mut bytes), Err(DeviceError::OutOfRange { .. })));
        assert!(matches!(device.fill(at, 0, 4), Err(DeviceError::OutOfRange { .. })));
    }
}

pub fn constants_are_read_by_kernels_and_written_by_the_engine(make: Make) {
    let mut rig = make(Wanted::default());
    let (begin, bytes) = (rig.device.info().constants_base, rig.device.info().constants_bytes);
    let [first, last] = [4096, bytes - 4096].map(|at| rig.constant(DeviceOffset(begin.0 + at), 4096));
    let ones: Vec<u8> = (0..256).flat_map(|_| 1f32.to_ne_bytes()).collect();
    rig.device.write(first, &ones).unwrap();
    rig.device.write(last, &ones).unwrap();
    let out = rig.alloc(1024);
    let add = |out| {
        Launch::new(Kernel::VectorAdd, 1, vec![Param::At(first), Param::At(last), Param::At(out), Param::U32(256)])
    };
    assert_eq!(rig.run(0, &add(out)).status, LaunchStatus::Complete);
    assert_eq!(rig.u32s(out, 256), [2f32.to_bits(); 256]);

    let completion = rig.run(0, &add(first));
    assert_eq!(completion.status, LaunchStatus::Failed);
    let fault = rig.device.report(completion.launch).and_then(|report| report.fault).expect("a fault");
    let range = rig.device.info().constants_range().expect("the device keeps constants apart");
    assert_eq!(
        (range.base, fault.address.map(|address| address & range.mask())),
        (begin, Some(4096)),
        "aligned for kernels too"
    );
    let text = fault.to_string();
    assert!(text.starts_with("kernel 'vector_add' faulted in block (0,0,0)") && text.contains(" at line "), "{text}");
    assert!(
        text.contains(": write to 0x")
            && text.contains("bytes into 'constants'")
            && text.ends_with("which is read-only"),
        "{text}"
    );
    assert_eq!(rig.u32s(first, 256), [1f32.to_bits(); 256]);
    rig.device.copy(first, out, 1024).unwrap();
    assert_eq!(rig.u32s(out, 256), [1f32.to_bits(); 256]);

    for at in [begin.0 + bytes - 3, begin.0 + bytes, begin.0 - 2, begin.0, first.0 + 4094] {
        assert!(matches!(rig.device.write(DeviceOffset(at), &[0; 4]), Err(DeviceError::OutOfRange { .. })), "{at:#x}");
    }
}

pub fn a_released_constant_is_unmapped(make: Make) {
    let mut rig = make(Wanted::default());
    let begin = rig.device.info().constants_base;
    let (place, out) = (DeviceOffset(begin.0 + (1 << 20)), rig.alloc(1024));
    let add =
        Launch::new(Kernel::VectorAdd, 1, vec![Param::At(place), Param::At(place), Param::At(out), Param::U64(256)]);
    for value in [1f32, 0.] {
        rig.constant(place, 8192);
        if value != 0. {
            let ones: Vec<u8> = (0..2048).flat_map(|_| value.to_ne_bytes()).collect();
            rig.device.write(place, &ones).unwrap();
        }
        assert_eq!(rig.run(0, &add).status, LaunchStatus::Complete);
        assert_eq!(rig.u32s(out, 256), [(2. * value).to_bits(); 256]);
        rig.device.release_constant(place);
        assert!(matches!(rig.device.read(place, &mut [0]), Err(DeviceError::OutOfRange { .. })));
        // An executor learns of the release in time, before anything else is mapped for it.
        rig.constant(DeviceOffset(begin.0), 4096);
        assert_eq!(rig.run(0, &add).status, LaunchStatus::Failed, "nothing is mapped there");
        rig.device.release_constant(begin);
    }
}

pub fn constants_do_not_overlap(make: Make) {
    let mut rig = make(Wanted::default());
    let (begin, bytes) = (rig.device.info().constants_base.0, rig.device.info().constants_bytes);
    rig.constant(DeviceOffset(begin + 8192), 8192);
    for (at, bytes) in [
        (8192, 4096),
        (4096, 8192),
        (0, 1 << 20),
        (12288, 4096),
        (16384, 100),
        (20, 4096),
        (20480, 0),
        (bytes - 4096, 8192),
    ] {
        assert!(rig.device.reserve_constant(DeviceOffset(begin + at), bytes).is_err(), "{bytes} bytes at {at}");
    }
    assert!(
        rig.device.reserve_constant(DeviceOffset(0), 4096).is_err()
            && rig.device.reserve_constant(DeviceOffset(u64::MAX - 4095), 4096).is_err()
    );
    for at in [4096, 16384] {
        rig.constant(DeviceOffset(begin + at), 4096);
    }
}

pub fn memory_given_back_reads_as_zero(make: Make) {
    let mut rig = make(Wanted::default());
    rig.device.fill(DeviceOffset(0), 7, 1 << 20).unwrap();
    rig.device.give_back(DeviceOffset(5000), 1 << 19).unwrap();
    let mut bytes = vec![0; 1 << 20];
    rig.device.read(DeviceOffset(0), &mut bytes).unwrap();
    let expected = |at| if (5000..5000 + (1 << 19)).contains(&at) { 0 } else { 7 };
    assert!((0..1 << 20).all(|at| bytes[at] == expected(at)));
    let end = rig.device.info().memory_bytes;
    assert!(matches!(rig.device.give_back(DeviceOffset(end - 1), 2), Err(DeviceError::OutOfRange { .. })));
}
