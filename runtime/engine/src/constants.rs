//! Constants on the device, held once by content.
//!
//! A *constant* is one buffer's bytes under their digest. A *set* is all that one function needs at a time; functions with equal constants have one set, and sets may share
//! constants. What is counted here is who needs what: a constant keeps its place on the device while a set that is being loaded, or is loaded, holds it.

use crate::memory::{Allocation, Memory};
use atoll_core::DeviceOffset;
use atoll_core::residency::ItemId;
use atoll_kgraph::{Bundle, ConstantDigest};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

/// A constant, for as long as a set names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ConstantId(u64);

/// All constants and sets of the functions that are loaded.
#[derive(Debug, Default)]
pub(crate) struct Constants {
    constants: HashMap<ConstantId, Held>,
    by_digest: HashMap<ConstantDigest, ConstantId>,
    sets: BTreeMap<ItemId, Set>,
    by_members: HashMap<Box<[ConstantId]>, ItemId>,
    ids: u64,
}

#[derive(Debug)]
struct Held {
    digest: ConstantDigest,
    bytes: u64,
    /// Sets that name it.
    sets: u32,
    /// Sets that hold it on the device.
    holders: u32,
    place: Option<Allocation>,
    /// All of its bytes are in its place.
    whole: bool,
}

/// What one function, or several, need at a time.
#[derive(Debug)]
pub(crate) struct Set {
    functions: u32,
    /// Where the bytes come from: any of its functions has them.
    bundle: Arc<Bundle>,
    /// Each constant once, with its range in the weights of `bundle`.
    pieces: Box<[(ConstantId, Range<usize>)]>,
    pub(crate) state: SetState,
}

/// Where the constants of a set are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetState {
    /// Not all of them are on the device.
    Away,
    /// Each has its place; those in front of `piece`, and the first bytes of that one, are there.
    Loading { piece: usize, written: usize },
    /// On the device.
    Resident,
}

/// The set of a function, and where its constants are found: one entry per constant of the bundle, in their order.
#[derive(Clone, Debug)]
pub(crate) struct Membership {
    pub(crate) set: ItemId,
    pub(crate) constants: Box<[ConstantId]>,
}

/// The next bytes to be written for a set that is being loaded.
pub(crate) struct Chunk {
    pub(crate) to: DeviceOffset,
    /// In the weights of the set's bundle.
    pub(crate) from: Range<usize>,
    pub(crate) bundle: Arc<Bundle>,
}

impl Constants {
    /// A function with these constants is loaded; none of them needs to be on the device.
    pub(crate) fn join(&mut self, bundle: &Arc<Bundle>) -> Membership {
        let constants: Box<[ConstantId]> =
            bundle.constants().iter().map(|constant| self.constant(constant.digest, constant.bytes)).collect();
        let mut members: Vec<ConstantId> = constants.to_vec();
        members.sort_unstable();
        members.dedup();
        let members = members.into_boxed_slice();
        if let Some(&set) = self.by_members.get(&members) {
            self.set_mut(set).functions += 1;
            return Membership { set, constants };
        }
        let set = ItemId(self.next_id());
        let mut ranges: BTreeMap<ConstantId, Range<usize>> = BTreeMap::new();
        for (&id, constant) in constants.iter().zip(bundle.constants()) {
            ranges.entry(id).or_insert(constant.offset as usize..(constant.offset + constant.bytes) as usize);
        }
        members.iter().for_each(|id| self.held_mut(*id).sets += 1);
        // In the order of the file, so that it is read from front to back.
        let mut pieces: Box<[_]> = ranges.into_iter().collect();
        pieces.sort_by_key(|(_, range)| range.start);
        let state = if pieces.is_empty() { SetState::Resident } else { SetState::Away };
        self.sets.insert(set, Set { functions: 1, bundle: Arc::clone(bundle), pieces, state });
        self.by_members.insert(members, set);
        Membership { set, constants }
    }

    /// A function of this set is unloaded. The last one gives the memory back.
    pub(crate) fn leave(&mut self, set: ItemId, memory: &mut Memory) {
        self.set_mut(set).functions -= 1;
        if self.sets[&set].functions > 0 {
            return;
        }
        self.release(set, memory);
        let gone = self.sets.remove(&set).expect("it was just there");
        let mut members: Vec<ConstantId> = gone.pieces.iter().map(|(id, _)| *id).collect();
        members.sort_unstable();
        self.by_members.remove(&members[..]);
        for id in members {
            let held = self.held_mut(id);
            held.sets -= 1;
            if held.sets == 0 {
                let held = self.constants.remove(&id).expect("it was just there");
                self.by_digest.remove(&held.digest);
            }
        }
    }

    /// Holds every constant of a set. What has no place yet is to be given one with [`Constants::place`].
    pub(crate) fn hold(&mut self, set: ItemId) {
        assert_eq!(self.sets[&set].state, SetState::Away, "a set is held once");
        self.members(set).into_iter().for_each(|id| self.held_mut(id).holders += 1);
        self.set_mut(set).state = SetState::Loading { piece: 0, written: 0 };
    }

    /// Lets go of a set that is held; constants that nobody else holds give their memory back.
    pub(crate) fn release(&mut self, set: ItemId, memory: &mut Memory) {
        if self.sets[&set].state == SetState::Away {
            return;
        }
        self.set_mut(set).state = SetState::Away;
        for id in self.members(set) {
            let held = self.held_mut(id);
            held.holders -= 1;
            if held.holders == 0 {
                held.whole = false;
                if let Some(place) = held.place.take() {
                    memory.free(place);
                }
            }
        }
    }

    /// Constants of a set that have no place on the device, with their sizes.
    pub(crate) fn homeless(&self, set: ItemId) -> Vec<(ConstantId, u64)> {
        let pieces = self.sets[&set].pieces.iter().map(|(id, _)| (*id, &self.constants[id]));
        pieces.filter(|(_, held)| held.place.is_none()).map(|(id, held)| (id, held.bytes)).collect()
    }

    /// Gives a held constant its place.
    pub(crate) fn place(&mut self, id: ConstantId, place: Allocation) {
        let held = self.held_mut(id);
        assert!(held.holders > 0 && held.place.is_none(), "a held constant is placed once");
        held.place = Some(place);
    }

    /// How many bytes of device memory each set is answerable for: a constant that several sets hold is divided among them, so that together they come to all there are.
    pub(crate) fn shares(&self) -> BTreeMap<ItemId, u64> {
        let mut seen: HashMap<ConstantId, usize> = HashMap::new();
        let mut shares = BTreeMap::new();
        for (set, Set { pieces, .. }) in self.sets.iter().filter(|(_, set)| set.state != SetState::Away) {
            let share: &mut u64 = shares.entry(*set).or_default();
            for (id, _) in pieces {
                let held = &self.constants[id];
                let bytes = held.place.as_ref().map_or(0, Allocation::bytes);
                let index = seen.entry(*id).or_default();
                *share += divide(bytes, held.holders as usize).nth(*index).unwrap_or_default();
                *index += 1;
            }
        }
        shares
    }

    /// The next bytes to write, at most so many; `None` if all are there and the set is now resident.
    pub(crate) fn next_chunk(&mut self, set: ItemId, bytes_max: usize) -> Option<Chunk> {
        let SetState::Loading { mut piece, mut written } = self.sets[&set].state else { return None };
        loop {
            let Some((id, range)) = self.sets[&set].pieces.get(piece).cloned() else {
                self.set_mut(set).state = SetState::Resident;
                return None;
            };
            let held = &self.constants[&id];
            // Another set may have loaded it.
            if held.whole || written == range.len() {
                self.held_mut(id).whole = true;
                (piece, written) = (piece + 1, 0);
                continue;
            }
            let base = held.place.as_ref().expect("a set that is loaded has places").offset();
            let bytes = bytes_max.min(range.len() - written);
            let from = range.start + written..range.start + written + bytes;
            let to = DeviceOffset(base.0 + written as u64);
            let set = self.set_mut(set);
            set.state = SetState::Loading { piece, written: written + bytes };
            return Some(Chunk { to, from, bundle: Arc::clone(&set.bundle) });
        }
    }

    pub(crate) fn state(&self, set: ItemId) -> SetState {
        self.sets[&set].state
    }

    /// Where a constant of a resident set is.
    pub(crate) fn offset(&self, id: ConstantId) -> DeviceOffset {
        self.constants[&id].place.as_ref().expect("a constant of a resident set has a place").offset()
    }

    fn constant(&mut self, digest: ConstantDigest, bytes: u64) -> ConstantId {
        if let Some(&id) = self.by_digest.get(&digest) {
            return id;
        }
        let id = ConstantId(self.next_id());
        self.constants.insert(id, Held { digest, bytes, sets: 0, holders: 0, place: None, whole: false });
        self.by_digest.insert(digest, id);
        id
    }

    fn members(&self, set: ItemId) -> Vec<ConstantId> {
        self.sets[&set].pieces.iter().map(|(id, _)| *id).collect()
    }

    fn set_mut(&mut self, set: ItemId) -> &mut Set {
        self.sets.get_mut(&set).expect("a set lives as long as a function of it")
    }

    fn held_mut(&mut self, id: ConstantId) -> &mut Held {
        self.constants.get_mut(&id).expect("a constant lives as long as a set of it")
    }

    fn next_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }
}

/// A number in so many equal parts; the first ones take what is left over.
pub(crate) fn divide(whole: u64, parts: usize) -> impl Iterator<Item = u64> {
    let (part, left) = (whole / parts.max(1) as u64, whole % parts.max(1) as u64);
    (0..parts as u64).map(move |index| part + u64::from(index < left))
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_kgraph::*;

    /// A bundle with one constant of each of these sizes, filled with this byte.
    fn bundle(constants: &[(u64, u8)]) -> Arc<Bundle> {
        let mut offset = 0;
        let (mut buffers, mut weights) = (Vec::new(), Vec::new());
        for (index, &(bytes, fill)) in constants.iter().enumerate() {
            let (name, shape) = (format!("c{index}"), vec![Expr::Const(bytes as i64)]);
            buffers.push(BufferSpec { name, kind: BufferKind::Const, dtype: DType::U8, shape, weights_offset: Some(offset) });
            weights.push((offset, vec![fill; bytes as usize]));
            offset += bytes.next_multiple_of(BUFFER_ALIGN);
        }
        let plan = MemoryPlan::default();
        let graph = KernelGraph { format: FORMAT_VERSION, name: "constants".into(), symbols: vec![], buffers, nodes: vec![], plan };
        let weights = weights.iter().map(|(offset, bytes)| (*offset, &bytes[..])).collect();
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("constants.kg");
        write_bundle(&path, &BundleContents { producer: "test".into(), graph: &graph, weights, targets: vec![] }).expect("a valid bundle");
        Bundle::open(&path).expect("a valid bundle")
    }

    /// Brings a set to the device, and says how many bytes that moved.
    fn load(constants: &mut Constants, memory: &mut Memory, set: ItemId) -> usize {
        constants.hold(set);
        for (id, bytes) in constants.homeless(set) {
            constants.place(id, memory.allocate(bytes).expect("room"));
        }
        let mut moved = 0;
        while let Some(chunk) = constants.next_chunk(set, 100) {
            assert!(chunk.from.len() <= 100 && chunk.to.0 + chunk.from.len() as u64 <= memory.total());
            moved += chunk.from.len();
        }
        assert_eq!(constants.state(set), SetState::Resident);
        moved
    }

    #[test]
    fn equal_constants_have_one_place_however_many_name_them() {
        let (mut constants, mut memory) = (Constants::default(), Memory::new(1 << 20));
        let (first, second) = (bundle(&[(1000, 1), (300, 2), (1000, 1)]), bundle(&[(300, 2), (500, 3)]));
        let a = constants.join(&first);
        assert_eq!((constants.state(a.set), constants.homeless(a.set).len()), (SetState::Away, 2));
        assert_eq!(load(&mut constants, &mut memory, a.set), 1300);
        assert_eq!(constants.offset(a.constants[0]), constants.offset(a.constants[2]));
        let again = constants.join(&first);
        assert_eq!(again.set, a.set);
        let b = constants.join(&second);
        assert_eq!(constants.homeless(b.set).len(), 1);
        assert_eq!(load(&mut constants, &mut memory, b.set), 500);
        assert_eq!((memory.used(), constants.offset(b.constants[0])), (1024 + 512 + 512, constants.offset(a.constants[1])));
        constants.leave(a.set, &mut memory);
        constants.leave(a.set, &mut memory);
        assert_eq!(memory.used(), 512 + 512, "what the second function needs");
        constants.leave(b.set, &mut memory);
        assert_eq!(memory.used(), 0);
        assert!(
            constants.constants.is_empty()
                && constants.sets.is_empty()
                && constants.by_digest.is_empty()
                && constants.by_members.is_empty()
        );
    }

    #[test]
    fn a_function_without_constants_is_always_there() {
        let mut constants = Constants::default();
        let nothing = constants.join(&bundle(&[]));
        assert_eq!(constants.state(nothing.set), SetState::Resident);
        constants.leave(nothing.set, &mut Memory::new(1024));
    }
}
