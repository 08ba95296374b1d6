//! Compares two devices: runs the same launch of the same kernel on both, and reports where the
//! results differ.
//!
//! The caller chooses the reference: the interpreter, which executes PTX literally and thread by
//! thread, or a device that was compared with it.

use crate::error::BenchError;
use crate::launch::{Buffer, Inputs, Kernel, KernelDevice, Launch, Outcome};
use atoll_kgraph::DType;
use half::{bf16, f16};
use std::fmt;

/// How closely the results of two devices have to agree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Agreement {
    /// Bit for bit, except for the bits of floating-point NaNs, which PTX leaves open.
    Exact,
    /// |a − b| ≤ this · max(1, |b|) for floating-point numbers; bit for bit for all others.
    Within(f64),
    /// The results depend on the order of blocks; the kernel only has to finish.
    Unordered,
}

/// Result of a comparison.
#[derive(Debug)]
pub enum Verdict {
    /// The results are equal.
    Equal,
    /// The results are within the tolerance. The largest difference is this share of it.
    Close(f64),
    /// Both devices ran the kernel, but its results cannot be compared.
    Unordered,
    /// The results differ.
    Different(Difference),
    /// The device refuses the kernel.
    Refused(BenchError),
    /// The launch failed on the device.
    Failed(BenchError),
    /// The reference cannot run the kernel.
    NoReference(BenchError),
}

/// A difference between results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// In a buffer.
    Memory {
        /// The buffer's name.
        buffer: String,
        /// Type of its elements.
        element: DType,
        /// Number of elements that differ.
        count: usize,
        /// Number of elements of the buffer.
        of: usize,
        /// Index of the first difference.
        index: usize,
        /// Value on the device.
        found: String,
        /// Value on the reference.
        expected: String,
    },
    /// In the output of `printf`.
    Printed {
        /// On the device.
        found: String,
        /// On the reference.
        expected: String,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::Memory { buffer, element, count, of, index, found, expected } => {
                let element = format!("{element:?}").to_lowercase();
                write!(
                    f,
                    "`{buffer}`: {count} of {of} elements differ, the first ({element}) at {index}: {found}, expected \
                    {expected}"
                )
            }
            Difference::Printed { found, expected } => write!(f, "it printed {found:?}, expected {expected:?}"),
        }
    }
}

/// Why a device did not run a kernel.
#[derive(Debug)]
pub enum NotRun {
    /// The device refuses the kernel.
    Refused(BenchError),
    /// The launch failed.
    Failed(BenchError),
}

/// A device of any kind: loads a kernel, launches it once and unloads it.
pub trait Runner {
    /// Runs a kernel on the buffers.
    fn run(&mut self, kernel: &Kernel<'_>, launch: &Launch, buffers: &mut [Buffer]) -> Result<Outcome, NotRun>;

    /// See [`KernelDevice::captures_output`].
    fn captures_output(&self) -> bool;
}

impl<D: KernelDevice> Runner for D {
    fn run(&mut self, kernel: &Kernel<'_>, launch: &Launch, buffers: &mut [Buffer]) -> Result<Outcome, NotRun> {
        let loaded = self.load(kernel).map_err(NotRun::Refused)?;
        let outcome = self.launch(&loaded, launch, buffers, 1);
        self.unload(loaded);
        outcome.map_err(NotRun::Failed)
    }

    fn captures_output(&self) -> bool {
        KernelDevice::captures_output(self)
    }
}

/// Runs a kernel on the reference, then on the device, and compares the results.
pub fn compare(device: &mut dyn Runner, reference: &mut dyn Runner, kernel: &Kernel<'_>, inputs: &Inputs) -> Verdict {
    let (mut found, mut expected) = (inputs.buffers.clone(), inputs.buffers.clone());
    let wanted = match reference.run(kernel, &inputs.launch, &mut expected) {
        Ok(outcome) => outcome,
        Err(NotRun::Refused(error) | NotRun::Failed(error)) => return Verdict::NoReference(error),
    };
    let outcome = match device.run(kernel, &inputs.launch, &mut found) {
        Ok(outcome) => outcome,
        Err(NotRun::Refused(error)) => return Verdict::Refused(error),
        Err(NotRun::Failed(error)) => return Verdict::Failed(error),
    };
    if device.captures_output() && reference.captures_output() && outcome.printed != wanted.printed {
        return Verdict::Different(Difference::Printed { found: outcome.printed, expected: wanted.printed });
    }
    let bound = match inputs.agreement {
        Agreement::Exact => None,
        Agreement::Within(bound) => Some(bound),
        Agreement::Unordered => return Verdict::Unordered,
    };
    let mut largest = 0f64;
    for ((found, expected), &element) in found.iter().zip(&expected).zip(&inputs.elements) {
        match memory(found, expected, element, bound) {
            Ok(share) => largest = largest.max(share),
            Err(difference) => return Verdict::Different(difference),
        }
    }
    if largest == 0.0 { Verdict::Equal } else { Verdict::Close(largest) }
}

/// Compares one buffer. Returns the largest difference as a share of the tolerance, or the elements
/// beyond it.
fn memory(found: &Buffer, expected: &Buffer, element: DType, bound: Option<f64>) -> Result<f64, Difference> {
    if found.bytes == expected.bytes {
        return Ok(0.0);
    }
    let size = element.bytes() as usize;
    let pairs = || found.bytes.chunks_exact(size).zip(expected.bytes.chunks_exact(size));
    let shares = pairs().map(|(a, b)| share(a, b, element, bound));
    let mut beyond = shares.clone().enumerate().filter(|(_, share)| *share > 1.0).map(|(index, _)| index).peekable();
    let Some(&index) = beyond.peek() else {
        return Ok(shares.fold(0.0, f64::max));
    };
    let at = |buffer: &Buffer| text(&buffer.bytes[index * size..][..size], element);
    Err(Difference::Memory {
        buffer: expected.name.clone(),
        element,
        count: beyond.count(),
        of: expected.bytes.len() / size,
        index,
        found: at(found),
        expected: at(expected),
    })
}

/// The difference of two elements as a share of the tolerance.
fn share(a: &[u8], b: &[u8], element: DType, bound: Option<f64>) -> f64 {
    if a == b {
        return 0.0;
    }
    match (value(a, element), value(b, element), bound) {
        (Some(a), Some(b), _) if a.is_nan() && b.is_nan() => 0.0,
        (Some(a), Some(b), Some(bound)) => {
            let share = (a - b).abs() / (bound * b.abs().max(1.0));
            // A NaN or an infinity on one side only.
            if share.is_nan() { f64::INFINITY } else { share }
        }
        _ => f64::INFINITY,
    }
}

/// The value of a floating-point number.
fn value(bytes: &[u8], element: DType) -> Option<f64> {
    match element {
        DType::F16 => bytes.try_into().ok().map(|bytes| f16::from_le_bytes(bytes).to_f64()),
        DType::Bf16 => bytes.try_into().ok().map(|bytes| bf16::from_le_bytes(bytes).to_f64()),
        DType::F32 => bytes.try_into().ok().map(|bytes| f32::from_le_bytes(bytes).into()),
        DType::F64 => bytes.try_into().ok().map(f64::from_le_bytes),
        _ => None,
    }
}

/// Formats an element; floating-point numbers with their bits.
fn text(bytes: &[u8], element: DType) -> String {
    let bits: String = bytes.iter().rev().map(|byte| format!("{byte:02x}")).collect();
    match value(bytes, element) {
        Some(value) => format!("{value} (0x{bits})"),
        None => format!("0x{bits}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random_kernel::{ENTRY, RandomKernel};
    use crate::{InterpBench, InterpKernel};

    /// The interpreter with a deliberate error.
    struct Wrong {
        interp: InterpBench,
        mistake: Mistake,
    }

    #[derive(Clone, Copy)]
    enum Mistake {
        None,
        /// Flips one bit of the third buffer after a launch.
        Bit(usize),
        Refuses,
        Fails,
        Prints,
    }

    impl KernelDevice for Wrong {
        type Loaded = InterpKernel;

        fn load(&mut self, kernel: &Kernel<'_>) -> Result<InterpKernel, BenchError> {
            match self.mistake {
                Mistake::Refuses => Err(BenchError::Launch("refused".into())),
                _ => self.interp.load(kernel),
            }
        }

        fn launch(
            &mut self,
            kernel: &InterpKernel,
            launch: &Launch,
            buffers: &mut [Buffer],
            repeat: u32,
        ) -> Result<Outcome, BenchError> {
            let mut outcome = self.interp.launch(kernel, launch, buffers, repeat)?;
            match self.mistake {
                Mistake::Fails => return Err(BenchError::Launch("failed".into())),
                Mistake::Bit(at) => buffers[2].bytes[at / 8] ^= 1 << (at % 8),
                Mistake::Prints => outcome.printed.push('?'),
                Mistake::None | Mistake::Refuses => {}
            }
            Ok(outcome)
        }

        fn unload(&mut self, _: InterpKernel) {}
    }

    fn verdict(mistake: Mistake) -> Verdict {
        let random = RandomKernel::new(3);
        let module = atoll_ptx::parse(&random.ptx()).unwrap();
        let inputs = random.inputs();
        let kernel = Kernel { module: &module, entry: ENTRY, report: None, block: inputs.block };
        compare(&mut Wrong { interp: InterpBench::default(), mistake }, &mut InterpBench::default(), &kernel, &inputs)
    }

    #[test]
    fn every_error_is_found() {
        assert!(matches!(verdict(Mistake::None), Verdict::Equal));
        assert!(matches!(verdict(Mistake::Refuses), Verdict::Refused(_)));
        assert!(matches!(verdict(Mistake::Fails), Verdict::Failed(_)));
        assert!(matches!(verdict(Mistake::Prints), Verdict::Different(Difference::Printed { .. })));
        for bit in [0, 31, 32, 1000] {
            let Verdict::Different(Difference::Memory { buffer, index, count, .. }) = verdict(Mistake::Bit(bit)) else {
                panic!("bit {bit} was not found");
            };
            assert_eq!((buffer.as_str(), index, count), ("output", bit / 32, 1));
        }
    }

    fn held(element: DType, found: &[u8], expected: &[u8], bound: Option<f64>) -> Result<f64, Difference> {
        let buffer = |bytes: &[u8]| Buffer { name: "b".into(), bytes: bytes.to_vec(), writable: true };
        memory(&buffer(found), &buffer(expected), element, bound)
    }

    #[test]
    fn floats_are_held_to_their_bound_and_integers_to_their_bits() {
        let f = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
        let share = held(DType::F32, &f(&[1.0, 100.5]), &f(&[1.0, 100.0]), Some(0.01)).unwrap();
        assert!((share - 0.5).abs() < 1e-9, "{share}");
        let difference = held(DType::F32, &f(&[1.0, 102.0]), &f(&[1.0, 100.0]), Some(0.01)).unwrap_err();
        assert_eq!(
            difference.to_string(),
            "`b`: 1 of 2 elements differ, the first (f32) at 1: 102 (0x42cc0000), expected 100 (0x42c80000)"
        );
        assert!(held(DType::F32, &f(&[1.0]), &f(&[1.0 + f32::EPSILON]), None).is_err());
        assert!(held(DType::F32, &f(&[f32::NAN]), &f(&[1.0]), Some(1e9)).is_err());
        assert!(held(DType::F32, &f(&[f32::INFINITY]), &f(&[1.0]), Some(1e9)).is_err());
        assert_eq!(held(DType::F32, &f(&[f32::from_bits(0x7fff_ffff)]), &f(&[f32::NAN]), None), Ok(0.0));
        assert!(held(DType::I32, &[1, 0, 0, 0], &[2, 0, 0, 0], Some(10.0)).is_err());
        assert!(held(DType::U8, &[1, 2], &[1, 3], Some(10.0)).is_err());
    }
}
