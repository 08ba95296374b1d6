//! Pinned memory that kernels and fills use by its address. The device cannot access the program's
//! memory. So a launch gets a copy of each block of pinned memory whose address is among its
//! parameters, with the address of the copy in place of it. The call waits for the kernel and writes
//! the bytes that it has changed into the program's memory; the program may change others meanwhile.
//! A fill waits for the stream and is made here.
//!
//! Addresses that kernels read from memory are not found. A kernel that uses such an address faults.

use crate::arguments::Place;
use crate::log::log;
use crate::shim::Shim;
use crate::work::{Fill, Shape};
use atoll_session::{Code, HostCopy, Span, limits};
use std::collections::BTreeMap;

/// The context number of copies, which is none of the program's.
const NO_CONTEXT: u32 = 0;

/// A copy of pinned memory on the device.
struct Copied {
    /// The program's memory.
    of: Span,
    /// The allocation on the device, and the address of the first byte in it.
    allocation: u64,
    at: u64,
    /// What the kernel gets.
    before: Vec<u8>,
}

impl Copied {
    /// The address in the copy for one in the program's memory.
    fn place(&self, address: u64) -> u64 {
        self.at + (address - self.of.at)
    }
}

impl Shim {
    /// Launches a kernel.
    pub(crate) fn launch(&mut self, stream: u32, kernel: u32, shape: &Shape, params: &[u8]) -> Result<(), Code> {
        self.managed_to_device()?;
        let rest = (shape.shared_bytes, shape.is_cooperative);
        let blocks = self.pinned_among(params);
        if blocks.is_empty() {
            return self.client.launch(stream, kernel, [shape.grid, shape.block], rest, params);
        }
        self.client.check_launch(kernel, [shape.grid, shape.block], shape.shared_bytes, params)?;
        // Copies that are not complete may still write into the memory.
        self.client.synchronize()?;
        let mut copies = Vec::new();
        let launched = self.lend(stream, blocks, &mut copies).and_then(|()| {
            let params = replaced(params, &copies);
            self.client.launch(stream, kernel, [shape.grid, shape.block], rest, &params)?;
            copies.iter().try_for_each(|copied| self.take_back(stream, copied))
        });
        for copied in copies {
            self.client.free(copied.allocation)?;
        }
        launched
    }

    /// The blocks of pinned memory whose addresses are among parameters.
    fn pinned_among(&self, params: &[u8]) -> Vec<Span> {
        let blocks: BTreeMap<u64, Span> = words(params)
            .filter(|(_, word)| self.client.find(*word).is_none())
            .filter_map(|(_, word)| self.host.block(word))
            .map(|block| (block.at, block))
            .collect();
        blocks.into_values().collect()
    }

    /// Copies blocks of pinned memory to the device. The copies have the alignment of the blocks.
    fn lend(&mut self, stream: u32, blocks: Vec<Span>, copies: &mut Vec<Copied>) -> Result<(), Code> {
        for of in blocks {
            let before = Place::at(of.at).bytes(of.bytes)?.to_vec();
            let skew = of.at % limits::ALIGN_BYTES;
            let allocated = self.client.allocate(NO_CONTEXT, of.bytes.saturating_add(skew));
            if allocated == Err(Code::OUT_OF_MEMORY) {
                log(&format_args!(
                    "a kernel uses {} bytes of pinned memory, which are not free on the device for a copy",
                    of.bytes
                ));
            }
            let allocation = allocated?;
            copies.push(Copied { of, allocation, at: allocation + skew, before });
            let copied = copies.last().ok_or(Code::UNKNOWN)?;
            self.client.copy_in(stream, copied.at, &copied.before)?;
        }
        Ok(())
    }

    /// Waits for the kernel, and writes what it has changed into the program's memory.
    fn take_back(&mut self, stream: u32, copied: &Copied) -> Result<(), Code> {
        let mut after = vec![0u8; copied.before.len()];
        let start = after.as_mut_ptr().expose_provenance() as u64;
        self.client.copy_out(stream, HostCopy { to: start, bytes: copied.of.bytes }, copied.at)?;
        self.client.complete_copies()?;
        let is_changed = |index: &usize| copied.before.get(*index) != after.get(*index);
        let mut index = 0;
        while let Some(first) = (index..after.len()).find(is_changed) {
            let end = (first..after.len()).find(|index| !is_changed(index)).unwrap_or(after.len());
            let (from, to) = (Place::at(start + first as u64), Place::at(copied.of.at + first as u64));
            from.move_to(to, (end - first) as u64)?;
            index = end;
        }
        Ok(())
    }

    /// Fills pinned memory when the work of the stream is done.
    pub(crate) fn fill_pinned(&mut self, fill: &Fill, stream: u32) -> Result<(), Code> {
        self.client.synchronize_stream(stream)?;
        let element = &fill.value.to_le_bytes()[..fill.size as usize];
        let row = element.repeat(usize::try_from(fill.width).map_err(|_| Code::INVALID_VALUE)?);
        let from = Place::at(row.as_ptr().expose_provenance() as u64);
        for number in 0..fill.height {
            from.move_to(Place::at(fill.at + number * fill.pitch), row.len() as u64)?;
        }
        Ok(())
    }
}

/// Each word of parameters at which an address may be, and its place.
fn words(params: &[u8]) -> impl Iterator<Item = (usize, u64)> + '_ {
    let (words, _) = params.as_chunks::<8>();
    words.iter().enumerate().map(|(index, word)| (index * 8, u64::from_le_bytes(*word)))
}

/// The parameters with the addresses of copies.
fn replaced(params: &[u8], copies: &[Copied]) -> Vec<u8> {
    let mut replaced = params.to_vec();
    for (place, word) in words(params) {
        let holds = |copied: &&Copied| copied.of.contains(Span { at: word, bytes: 1 });
        if let Some(copied) = copies.iter().find(holds) {
            replaced[place..place + 8].copy_from_slice(&copied.place(word).to_le_bytes());
        }
    }
    replaced
}
