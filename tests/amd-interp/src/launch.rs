//! A launch, and the initial registers of its waves.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::Rng;

use crate::fault::RunError;
use crate::mode::Mode;
use crate::operand::TTMP;
use crate::program::Kernel;
use crate::target::{Generation, Target};
use crate::wave::{State, Wave};

/// The arguments of a launch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    /// Workgroups in x, y and z.
    pub grid: [u32; 3],
    /// Work-items of a workgroup in x, y and z.
    pub block: [u32; 3],
    /// Bytes of dynamic LDS, which follow the kernel's static LDS.
    pub dynamic_lds: u32,
    /// The kernel argument segment, including hidden arguments.
    pub kernarg: Vec<u8>,
}

/// Addresses of memory that the hardware passes to a kernel.
pub(crate) const KERNARG: u64 = 0x5000_0000_0000;
pub(crate) const DISPATCH: u64 = 0x5100_0000_0000;
const QUEUE: u64 = 0x5200_0000_0000;
const SCRATCH: u64 = 0x6000_0000_0000;

/// Maximum size of the LDS of a workgroup in bytes: that of gfx950, which has the most.
const LARGEST_LDS: u64 = 160 << 10;

impl Launch {
    /// Work-items of a workgroup.
    pub(crate) fn threads(&self) -> u32 {
        self.block.iter().fold(1u32, |all, &n| all.saturating_mul(n))
    }

    /// Bytes of LDS of a workgroup.
    pub(crate) fn lds_bytes(&self, kernel: &Kernel) -> u64 {
        u64::from(kernel.descriptor.lds_bytes) + u64::from(self.dynamic_lds)
    }

    /// Returns an error if the kernel cannot be launched like this.
    pub(crate) fn check(&self, kernel: &Kernel) -> Result<(), RunError> {
        let refuse = |why: String| Err(RunError::Launch(why));
        if self.grid.contains(&0) || !(1..=1024).contains(&self.threads()) {
            return refuse(format!("a grid of {:?} workgroups of {:?} work-items", self.grid, self.block));
        }
        let (given, needed) = (self.kernarg.len(), kernel.descriptor.kernarg_bytes);
        if (given as u64) < u64::from(needed) {
            return refuse(format!("{given} bytes of kernel arguments; `{}` has {needed}", kernel.name));
        }
        let lds = self.lds_bytes(kernel);
        if lds > LARGEST_LDS {
            return refuse(format!("{lds} bytes of LDS; at most {LARGEST_LDS} are accepted"));
        }
        Ok(())
    }

    /// The dispatch packet, in the format of HSA's architected queuing language (AQL).
    pub(crate) fn packet(&self, kernel: &Kernel) -> Vec<u8> {
        let mut packet = Vec::with_capacity(64);
        let mut put = |bytes: &[u8]| packet.extend_from_slice(bytes);
        put(&[2, 0, 3, 0]);
        self.block.iter().for_each(|&n| put(&(n as u16).to_le_bytes()));
        put(&[0, 0]);
        let items = |at: usize| self.grid[at].saturating_mul(self.block[at]);
        (0..3).for_each(|at| put(&items(at).to_le_bytes()));
        put(&kernel.descriptor.private_bytes.to_le_bytes());
        put(&(self.lds_bytes(kernel) as u32).to_le_bytes());
        put(&kernel.object.to_le_bytes());
        put(&KERNARG.to_le_bytes());
        put(&[0; 16]);
        packet
    }
}

/// Makes the waves of a workgroup in their initial state.
pub(crate) struct Start<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) target: &'a Target,
    pub(crate) launch: &'a Launch,
    pub(crate) workgroup: [u32; 3],
    /// Bytes of scratch per lane.
    pub(crate) private_bytes: u32,
    /// Index of the workgroup's first wave among all resident waves.
    pub(crate) first_slot: u64,
}

impl Start<'_> {
    /// The wave with this index. Registers that the hardware does not initialize have values from
    /// `random`.
    pub(crate) fn wave(&self, index: u32, random: &mut SplitMix64) -> Wave {
        let (d, size) = (&self.kernel.descriptor, self.kernel.descriptor.wave_size);
        let scratch_bytes = self.private_bytes.next_multiple_of(4) as usize * size as usize;
        let slot_bytes = (scratch_bytes as u64).next_multiple_of(1024);
        let offset = (self.first_slot + u64::from(index)) * slot_bytes;
        let mut wave = Wave {
            workgroup: self.workgroup,
            index,
            size,
            state: State::Ready,
            pc: self.kernel.entry,
            scalar: std::array::from_fn(|_| random.next_u32()),
            sgprs: d.sgprs,
            vgprs: (0..d.vgprs).map(|_| [random.next_u32(); 64]).collect(),
            agprs: (0..d.agprs).map(|_| [random.next_u32(); 64]).collect(),
            scc: random.next_u32() & 1 == 1,
            mode: Mode(d.mode),
            scratch: (0..scratch_bytes).map(|at| (at as u32).wrapping_mul(0x9e37_79b9) as u8 ^ 0xa5).collect(),
            scratch_base: SCRATCH + offset,
            private_bytes: self.private_bytes.into(),
            lane: None,
        };
        let active = (self.launch.threads() - index * size).min(size);
        wave.set_exec(if active == 64 { u64::MAX } else { (1 << active) - 1 });
        self.set_scalars(&mut wave, offset as u32);
        self.set_work_items(&mut wave);
        wave
    }

    fn set_scalars(&self, wave: &mut Wave, wave_offset: u32) {
        let d = &self.kernel.descriptor;
        let mut values = Vec::new();
        let pair = |v: u64| [v as u32, (v >> 32) as u32];
        // Swizzled by lane in elements of 4 bytes; the index stride is the number of lanes.
        let index_stride = if wave.size == 64 { 3 } else { 2 };
        let base = pair(SCRATCH);
        let buffer = [base[0], base[1] & 0xffff | 1 << 31, u32::MAX, 1 << 23 | index_stride << 21 | 0x7000];
        let kinds: [&[u32]; 7] =
            [&buffer, &pair(DISPATCH), &pair(QUEUE), &pair(KERNARG), &pair(1), &pair(SCRATCH), &[self.private_bytes]];
        for (bit, words) in kinds.iter().enumerate().filter(|(bit, _)| d.user >> bit & 1 == 1) {
            debug_assert!(bit < 7);
            values.extend_from_slice(words);
        }
        // No argument is preloaded into SGPRs. Kernels with preloading begin with code that loads
        // the arguments instead.
        values.resize(d.user_sgprs.max(values.len()), 0);
        let [x, y, z] = self.workgroup;
        if self.target.generation == Generation::Gfx12 {
            wave.scalar[TTMP as usize + 9] = x;
            wave.scalar[TTMP as usize + 7] = y & 0xffff | z << 16;
        } else {
            let ids = [x, y, z].into_iter().enumerate().filter(|(at, _)| d.group_ids >> at & 1 == 1);
            values.extend(ids.map(|(_, id)| id));
        }
        if d.group_info {
            values.push(wave.index);
        }
        if d.wave_offset {
            values.push(wave_offset);
        }
        for (register, value) in values.into_iter().enumerate().take(d.sgprs) {
            wave.scalar[register] = value;
        }
    }

    fn set_work_items(&self, wave: &mut Wave) {
        let [x, y, _] = self.launch.block;
        for lane in 0..wave.size {
            let linear = wave.index * wave.size + lane;
            let ids = [linear % x, linear / x % y, linear / x / y];
            let lane = lane as usize;
            if self.target.packed_ids {
                wave.vgprs[0][lane] = ids[0] & 0x3ff | (ids[1] & 0x3ff) << 10 | (ids[2] & 0x3ff) << 20;
                continue;
            }
            let set = self.kernel.descriptor.item_ids.min(2) as usize;
            for (register, &id) in wave.vgprs.iter_mut().zip(&ids[..=set]) {
                register[lane] = id;
            }
        }
    }
}
