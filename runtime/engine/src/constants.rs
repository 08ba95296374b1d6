//! Constants on the device, held once by content.
//!
//! A *constant* is one buffer's bytes under their digest. A *set* is all that one function needs at a time; functions with equal constants have one set, and sets may share
//! constants. Sets come and go as wholes: one that is being loaded, or is loaded, *holds* its constants. Those that nobody holds any more are *leftovers*: their memory goes to whoever
//! needs it, oldest first, and a set that comes back before that finds them still there. Where they are is decided by who calls: places are given, and handed back when nobody needs them.
//!
//! Invocations *claim* the sets they need; what is claimed stays. Who goes is decided elsewhere ([`atoll_core::residency`], and `worker/residency.rs`).

use crate::memory::{Allocation, granules};
use atoll_core::residency::ItemId;
use atoll_core::{Class, DeviceOffset};
use atoll_kgraph::{Bundle, ConstantDigest};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// A constant, for as long as a set names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ConstantId(u64);

/// All constants and sets of the functions that are loaded.
#[derive(Debug)]
pub(crate) struct Constants {
    /// What each takes multiples of on the device.
    granule: u64,
    constants: HashMap<ConstantId, Constant>,
    by_digest: HashMap<ConstantDigest, ConstantId>,
    sets: BTreeMap<ItemId, Set>,
    by_members: HashMap<Box<[ConstantId]>, ItemId>,
    /// In the order in which they were let go.
    leftovers: BTreeMap<u64, ConstantId>,
    leftover_bytes: u64,
    device_bytes: u64,
    /// Counts ids and other things of which each is later than those before.
    count: u64,
}

#[derive(Debug)]
struct Constant {
    digest: ConstantDigest,
    /// What it takes on the device.
    bytes: u64,
    /// Sets that name it.
    sets: u32,
    /// Sets that hold it.
    holders: u32,
    place: Option<Allocation>,
    /// All of its bytes are in its place.
    whole: bool,
    /// Its place among the leftovers.
    leftover: Option<u64>,
}

/// What one function, or several, need at a time.
#[derive(Debug)]
struct Set {
    functions: u32,
    /// The most urgent class of its functions so far.
    class: Class,
    /// Where the bytes come from: any of its functions has them.
    bundle: Arc<Bundle>,
    /// Each constant once, with its range in the weights of `bundle`.
    pieces: Arc<[(ConstantId, Range<usize>)]>,
    state: SetState,
    /// Invocations that need it in place.
    claims: u32,
    /// When it was held last, as a count: what points to its constants is right only for this one.
    generation: u64,
}

/// Where the constants of a set are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetState {
    /// It holds none of them.
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
    pub(crate) fn new(granule: u64) -> Constants {
        Constants {
            granule,
            constants: HashMap::new(),
            by_digest: HashMap::new(),
            sets: BTreeMap::new(),
            by_members: HashMap::new(),
            leftovers: BTreeMap::new(),
            leftover_bytes: 0,
            device_bytes: 0,
            count: 0,
        }
    }

    /// A function with these constants is loaded; none of them needs to be on the device.
    pub(crate) fn join(&mut self, bundle: &Arc<Bundle>, class: Class) -> Membership {
        let constants: Box<[ConstantId]> =
            bundle.constants().iter().map(|constant| self.constant(constant.digest, constant.bytes)).collect();
        let mut members: Vec<ConstantId> = constants.to_vec();
        members.sort_unstable();
        members.dedup();
        if let Some(&set) = self.by_members.get(&members[..]) {
            let known = self.set_mut(set);
            known.functions += 1;
            known.class = known.class.min(class);
            return Membership { set, constants };
        }
        let set = ItemId(self.next());
        let mut ranges: BTreeMap<ConstantId, Range<usize>> = BTreeMap::new();
        for (&id, constant) in constants.iter().zip(bundle.constants()) {
            ranges.entry(id).or_insert(constant.offset as usize..(constant.offset + constant.bytes) as usize);
        }
        members.iter().for_each(|id| self.constant_mut(*id).sets += 1);
        // In the order of the file, so that it is read from front to back.
        let mut pieces: Vec<_> = ranges.into_iter().collect();
        pieces.sort_by_key(|(_, range)| range.start);
        let state = if pieces.is_empty() { SetState::Resident } else { SetState::Away };
        let new = Set { functions: 1, class, bundle: Arc::clone(bundle), pieces: pieces.into(), state, claims: 0, generation: 0 };
        self.sets.insert(set, new);
        self.by_members.insert(members.into(), set);
        Membership { set, constants }
    }

    /// A function of this set is unloaded. The last one takes the set along, with all memory that no other set needs; `None` while there are others.
    pub(crate) fn leave(&mut self, set: ItemId) -> Option<Vec<Allocation>> {
        self.set_mut(set).functions -= 1;
        if self.sets[&set].functions > 0 {
            return None;
        }
        assert_eq!(self.sets[&set].claims, 0, "no function of the set is left that could be invoked");
        let mut freed = self.let_go(set);
        let gone = self.sets.remove(&set).expect("it was just there");
        let mut members: Vec<ConstantId> = gone.pieces.iter().map(|(id, _)| *id).collect();
        members.sort_unstable();
        self.by_members.remove(&members[..]);
        for id in members {
            let constant = self.constant_mut(id);
            constant.sets -= 1;
            if constant.sets == 0 {
                freed.extend(self.drop_leftover(id));
                let constant = self.constants.remove(&id).expect("it was just there");
                self.by_digest.remove(&constant.digest);
            }
        }
        Some(freed)
    }

    /// Holds every constant of a set. What has no place yet ([`Constants::homeless`]) is to be given one with [`Constants::place`].
    pub(crate) fn hold(&mut self, set: ItemId) {
        assert_eq!(self.sets[&set].state, SetState::Away, "a set is held once");
        for (id, _) in self.pieces(set).iter() {
            let constant = self.constant_mut(*id);
            constant.holders += 1;
            if let Some(leftover) = constant.leftover.take() {
                self.leftover_bytes -= self.constants[id].bytes;
                self.leftovers.remove(&leftover);
            }
        }
        let generation = self.next();
        let set = self.set_mut(set);
        (set.state, set.generation) = (SetState::Loading { piece: 0, written: 0 }, generation);
    }

    /// Lets go of a set that is held. What was there stays as leftovers; the places of what was on its way are nobody's.
    pub(crate) fn let_go(&mut self, set: ItemId) -> Vec<Allocation> {
        let mut freed = Vec::new();
        if self.sets[&set].state == SetState::Away {
            return freed;
        }
        self.set_mut(set).state = SetState::Away;
        for (id, _) in self.pieces(set).iter() {
            let count = self.next();
            let constant = self.constant_mut(*id);
            constant.holders -= 1;
            if constant.holders > 0 || constant.place.is_none() {
                continue;
            }
            constant.leftover = Some(count);
            let (bytes, whole) = (constant.bytes, constant.whole);
            self.leftovers.insert(count, *id);
            self.leftover_bytes += bytes;
            if !whole {
                freed.extend(self.drop_leftover(*id));
            }
        }
        freed
    }

    /// The sets that hold their constants.
    pub(crate) fn held(&self) -> Vec<ItemId> {
        self.sets.iter().filter(|(_, set)| set.state != SetState::Away && !set.pieces.is_empty()).map(|(id, _)| *id).collect()
    }

    /// The place of the oldest leftover, which is gone then; `None` if there is none.
    pub(crate) fn reclaim_leftover(&mut self) -> Option<Allocation> {
        let (_, &id) = self.leftovers.first_key_value()?;
        self.drop_leftover(id)
    }

    fn drop_leftover(&mut self, id: ConstantId) -> Option<Allocation> {
        let constant = self.constants.get_mut(&id).expect("a leftover is known");
        let leftover = constant.leftover.take()?;
        constant.whole = false;
        self.leftovers.remove(&leftover);
        self.leftover_bytes -= constant.bytes;
        self.device_bytes -= constant.bytes;
        Some(constant.place.take().expect("a leftover has a place"))
    }

    /// Constants of a set that have no place on the device, with what they take.
    pub(crate) fn homeless(&self, set: ItemId) -> Vec<(ConstantId, u64)> {
        let pieces = self.sets[&set].pieces.iter().map(|(id, _)| (*id, &self.constants[id]));
        pieces.filter(|(_, constant)| constant.place.is_none()).map(|(id, constant)| (id, constant.bytes)).collect()
    }

    /// Gives a held constant its place.
    pub(crate) fn place(&mut self, id: ConstantId, place: Allocation) {
        let constant = self.constant_mut(id);
        assert!(constant.holders > 0 && constant.place.is_none(), "a held constant is placed once");
        constant.place = Some(place);
        self.device_bytes += self.constants[&id].bytes;
    }

    /// How many bytes of device memory each set is answerable for: a constant that several sets hold is divided among them, so that together they come to all there are.
    pub(crate) fn shares(&self) -> BTreeMap<ItemId, u64> {
        let mut seen: HashMap<ConstantId, usize> = HashMap::new();
        let mut shares = BTreeMap::new();
        for (set, Set { pieces, .. }) in self.sets.iter().filter(|(_, set)| set.state != SetState::Away) {
            let share: &mut u64 = shares.entry(*set).or_default();
            for (id, _) in pieces.iter() {
                let held = &self.constants[id];
                let bytes = held.place.as_ref().map_or(0, Allocation::bytes);
                let index = seen.entry(*id).or_default();
                *share += divide(bytes, held.holders as usize).nth(*index).unwrap_or_default();
                *index += 1;
            }
        }
        shares
    }

    /// Where the bytes of a set come from: a bundle, and the ranges of its weights that are not on the device, ascending.
    pub(crate) fn source(&self, set: ItemId) -> (Arc<Bundle>, Vec<Range<usize>>) {
        let Set { bundle, pieces, .. } = &self.sets[&set];
        let missing = pieces.iter().filter(|(id, range)| !self.constants[id].whole && !range.is_empty()).map(|(_, range)| range.clone());
        (Arc::clone(bundle), missing.collect())
    }

    /// The next bytes to write, at most so many and only such in front of `staged` in the weights; `None` if there are none, which may be because all are there and the set is now resident.
    pub(crate) fn next_chunk(&mut self, set: ItemId, bytes_max: usize, staged: usize) -> Option<Chunk> {
        let Set { state: SetState::Loading { mut piece, mut written }, ref pieces, .. } = self.sets[&set] else { return None };
        let pieces = Arc::clone(pieces);
        while let Some((id, range)) = pieces.get(piece) {
            let constant = self.constant_mut(*id);
            // Another set may have loaded it.
            constant.whole |= written == range.len();
            if constant.whole {
                (piece, written) = (piece + 1, 0);
                continue;
            }
            let base = constant.place.as_ref().expect("a set that is loaded has places").offset();
            let bytes = bytes_max.min(range.len() - written).min(staged.saturating_sub(range.start + written));
            if bytes == 0 {
                self.set_mut(set).state = SetState::Loading { piece, written };
                return None;
            }
            let from = range.start + written..range.start + written + bytes;
            let set = self.set_mut(set);
            set.state = SetState::Loading { piece, written: written + bytes };
            return Some(Chunk { to: DeviceOffset(base.0 + written as u64), from, bundle: Arc::clone(&set.bundle) });
        }
        self.set_mut(set).state = SetState::Resident;
        None
    }

    /// An invocation needs the set in place. Returns whether it is the first.
    pub(crate) fn claim(&mut self, set: ItemId) -> bool {
        let set = self.set_mut(set);
        set.claims += 1;
        set.claims == 1
    }

    /// An invocation does not need the set any more. Returns whether it was the last.
    pub(crate) fn unclaim(&mut self, set: ItemId) -> bool {
        let set = self.set_mut(set);
        set.claims = set.claims.checked_sub(1).expect("what is unclaimed was claimed");
        set.claims == 0
    }

    pub(crate) fn is_claimed(&self, set: ItemId) -> bool {
        self.sets[&set].claims > 0
    }

    pub(crate) fn state(&self, set: ItemId) -> SetState {
        self.sets[&set].state
    }

    pub(crate) fn is_resident(&self, set: ItemId) -> bool {
        self.state(set) == SetState::Resident
    }

    pub(crate) fn class(&self, set: ItemId) -> Class {
        self.sets[&set].class
    }

    pub(crate) fn generation(&self, set: ItemId) -> u64 {
        self.sets[&set].generation
    }

    /// What a set takes on the device.
    pub(crate) fn set_bytes(&self, set: ItemId) -> u64 {
        self.sets[&set].pieces.iter().map(|(id, _)| self.constants[id].bytes).sum()
    }

    /// What a set consists of: each constant once, with what it takes on the device.
    pub(crate) fn members(&self, set: ItemId) -> impl Iterator<Item = (ConstantId, u64)> {
        self.sets[&set].pieces.iter().map(|(id, _)| (*id, self.constants[id].bytes))
    }

    /// What these sets take together.
    pub(crate) fn bytes_of(&self, sets: &[ItemId]) -> u64 {
        let mut seen = HashSet::new();
        sets.iter().flat_map(|&set| self.members(set)).filter(|(id, _)| seen.insert(*id)).map(|(_, bytes)| bytes).sum()
    }

    /// How much of a set is on the device, leftovers included.
    pub(crate) fn set_device_bytes(&self, set: ItemId) -> u64 {
        let constants = self.sets[&set].pieces.iter().map(|(id, _)| &self.constants[id]);
        constants.filter(|constant| constant.whole).map(|constant| constant.bytes).sum()
    }

    /// What the constants of all functions would take on the device.
    pub(crate) fn bytes(&self) -> u64 {
        self.constants.values().map(|constant| constant.bytes).sum()
    }

    /// What constants take on the device now.
    pub(crate) fn device_bytes(&self) -> u64 {
        self.device_bytes
    }

    /// How much of that nobody holds.
    pub(crate) fn leftover_bytes(&self) -> u64 {
        self.leftover_bytes
    }

    /// Where a constant of a resident set is.
    fn offset(&self, id: ConstantId) -> DeviceOffset {
        self.constants[&id].place.as_ref().expect("a constant of a resident set has a place").offset()
    }

    /// The places of those constants of a function that have one.
    pub(crate) fn places(&self, membership: &Membership) -> Vec<DeviceOffset> {
        membership.constants.iter().filter_map(|id| Some(self.constants[id].place.as_ref()?.offset())).collect()
    }

    /// Where the constants of a function are whose set is resident.
    pub(crate) fn offsets(&self, membership: &Membership) -> Box<[DeviceOffset]> {
        membership.constants.iter().map(|&id| self.offset(id)).collect()
    }

    fn constant(&mut self, digest: ConstantDigest, bytes: u64) -> ConstantId {
        if let Some(&id) = self.by_digest.get(&digest) {
            return id;
        }
        let id = ConstantId(self.next());
        // It is a range of a file, so that rounding it up does not overflow.
        let bytes = granules(bytes, self.granule).unwrap_or(bytes);
        self.constants.insert(id, Constant { digest, bytes, sets: 0, holders: 0, place: None, whole: false, leftover: None });
        self.by_digest.insert(digest, id);
        id
    }

    fn pieces(&self, set: ItemId) -> Arc<[(ConstantId, Range<usize>)]> {
        Arc::clone(&self.sets[&set].pieces)
    }

    fn set_mut(&mut self, set: ItemId) -> &mut Set {
        self.sets.get_mut(&set).expect("a set lives as long as a function of it")
    }

    fn constant_mut(&mut self, id: ConstantId) -> &mut Constant {
        self.constants.get_mut(&id).expect("a constant lives as long as a set of it")
    }

    fn next(&mut self) -> u64 {
        self.count += 1;
        self.count
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
    use crate::memory::{DeviceMemory, Purpose, tests::device_info};
    use atoll_kgraph::{
        BUFFER_ALIGN, BufferKind, BufferSpec, BundleContents, DType, Expr, FORMAT_VERSION, KernelGraph, MemoryPlan, write_bundle,
    };

    fn memory() -> DeviceMemory {
        DeviceMemory::new(&device_info(1 << 20), None)
    }

    fn free(memory: &mut DeviceMemory, places: impl IntoIterator<Item = Allocation>) {
        places.into_iter().for_each(|place| memory.free(place));
    }

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
    fn load(constants: &mut Constants, memory: &mut DeviceMemory, set: ItemId) -> usize {
        constants.hold(set);
        for (id, bytes) in constants.homeless(set) {
            constants.place(id, memory.allocate(Purpose::Constant, bytes).expect("room"));
        }
        let mut moved = 0;
        while let Some(chunk) = constants.next_chunk(set, 100, usize::MAX) {
            assert!(chunk.from.len() <= 100);
            moved += chunk.from.len();
        }
        assert_eq!(constants.state(set), SetState::Resident);
        moved
    }

    #[test]
    fn equal_constants_have_one_place_however_many_name_them() {
        let (mut constants, mut memory) = (Constants::new(BUFFER_ALIGN), memory());
        let (first, second) = (bundle(&[(1000, 1), (300, 2), (1000, 1)]), bundle(&[(300, 2), (500, 3)]));
        let a = constants.join(&first, Class::BestEffort);
        assert_eq!((constants.state(a.set), constants.homeless(a.set).len()), (SetState::Away, 2));
        assert_eq!(load(&mut constants, &mut memory, a.set), 1300);
        assert_eq!(constants.offset(a.constants[0]), constants.offset(a.constants[2]));
        let again = constants.join(&first, Class::BestEffort);
        assert_eq!(again.set, a.set);
        let b = constants.join(&second, Class::BestEffort);
        assert_eq!(constants.homeless(b.set).len(), 1);
        assert_eq!(load(&mut constants, &mut memory, b.set), 500);
        assert_eq!((memory.used(), constants.offset(b.constants[0])), (1024 + 512 + 512, constants.offset(a.constants[1])));
        free(&mut memory, constants.leave(a.set).into_iter().flatten());
        free(&mut memory, constants.leave(a.set).into_iter().flatten());
        assert_eq!(memory.used(), 512 + 512, "what the second function needs");
        free(&mut memory, constants.leave(b.set).into_iter().flatten());
        assert_eq!(memory.used(), 0);
        assert!(
            constants.constants.is_empty()
                && constants.sets.is_empty()
                && constants.by_digest.is_empty()
                && constants.by_members.is_empty()
        );
    }

    #[test]
    fn what_is_let_go_is_found_again_until_somebody_needs_its_memory() {
        let (mut constants, mut memory) = (Constants::new(BUFFER_ALIGN), memory());
        let a = constants.join(&bundle(&[(1000, 1), (300, 2), (700, 3)]), Class::BestEffort);
        let b = constants.join(&bundle(&[(300, 2)]), Class::RealTime);
        load(&mut constants, &mut memory, a.set);
        load(&mut constants, &mut memory, b.set);
        free(&mut memory, constants.let_go(a.set));
        assert_eq!((memory.used(), constants.leftover_bytes()), (1024 + 512 + 768, 1024 + 768), "what another set holds is none");
        free(&mut memory, constants.reclaim_leftover());
        assert_eq!((memory.used(), constants.device_bytes(), constants.set_device_bytes(a.set)), (512 + 768, 512 + 768, 512 + 768));
        let old = constants.generation(a.set);
        assert_eq!(load(&mut constants, &mut memory, a.set), 1000, "only what is gone is loaded again");
        assert_eq!((constants.leftover_bytes(), constants.reclaim_leftover()), (0, None));
        assert_ne!(constants.generation(a.set), old);
        free(&mut memory, constants.let_go(a.set));
        for set in [a.set, b.set] {
            free(&mut memory, constants.leave(set).expect("its last function"));
        }
        assert_eq!((memory.used(), constants.leftover_bytes(), constants.device_bytes()), (0, 0, 0));
    }

    #[test]
    fn what_is_half_loaded_and_let_go_leaves_nothing() {
        let (mut constants, mut memory) = (Constants::new(BUFFER_ALIGN), memory());
        let a = constants.join(&bundle(&[(1000, 1)]), Class::BestEffort);
        constants.hold(a.set);
        let id = constants.homeless(a.set)[0].0;
        constants.place(id, memory.allocate(Purpose::Constant, 1000).expect("room"));
        assert_eq!(constants.next_chunk(a.set, 100, usize::MAX).map(|chunk| chunk.from), Some(0..100));
        free(&mut memory, constants.let_go(a.set));
        assert_eq!((memory.used(), constants.state(a.set), constants.reclaim_leftover()), (0, SetState::Away, None));
        assert_eq!(load(&mut constants, &mut memory, a.set), 1000);
    }

    #[test]
    fn a_function_without_constants_is_always_there() {
        let mut constants = Constants::new(BUFFER_ALIGN);
        let nothing = constants.join(&bundle(&[]), Class::BestEffort);
        assert_eq!(constants.state(nothing.set), SetState::Resident);
        assert_eq!(constants.leave(nothing.set), Some(Vec::new()));
    }
}
