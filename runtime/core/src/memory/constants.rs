//! Constants on the device, held once by content.
//!
//! A *constant* is one buffer's bytes under their digest. A *set* is all that one function needs at
//! a time; functions with equal constants have one set, and sets may share constants. Sets come and
//! go as wholes: one that is being loaded, or is loaded, *holds* its constants. Those that nobody
//! holds any more are *leftovers*: their memory goes to whoever needs it, oldest first, and a set
//! that comes back before that finds them still there. Where they are is decided by who calls:
//! places are given, and handed back when nobody needs them.
//!
//! Invocations *pin* the sets they need; what is pinned stays. Who goes is decided elsewhere
//! ([`crate::residency`], and `admission.rs`).

use super::event::{ConstantSpec, FunctionId, Place, Turn};
use super::ledger::granules;
use crate::ids::{Class, DeviceOffset};
use crate::residency::ItemId;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// A constant, for as long as a set names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ConstantId(u64);

/// All constants and sets of the functions that are loaded.
#[derive(Debug)]
pub(super) struct Constants {
    /// What each takes multiples of on the device.
    granule: u64,
    constants: HashMap<ConstantId, Constant>,
    by_digest: HashMap<[u8; 32], ConstantId>,
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
    digest: [u8; 32],
    /// What it takes on the device.
    bytes: u64,
    /// Sets that name it.
    sets: u32,
    /// Sets that hold it.
    holders: u32,
    place: Option<Place>,
    /// All of its bytes are in its place.
    whole: bool,
    /// Its place among the leftovers.
    leftover: Option<u64>,
}

/// What one function, or several, need at a time.
#[derive(Debug)]
struct Set {
    functions: BTreeSet<FunctionId>,
    /// Cold invocations that name it.
    cold: BTreeSet<Turn>,
    /// The most urgent class of its functions so far.
    class: Class,
    /// Each constant once, with its range in the weights of the set's first function.
    pieces: Arc<[(ConstantId, Range<usize>)]>,
    state: SetState,
    /// Invocations that need it in place.
    pins: u32,
    /// When it was held last, as a count: what points to its constants is right only for this one.
    generation: u64,
}

/// Where the constants of a set are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetState {
    /// It holds none of them.
    Away,
    /// Each has its place; those in front of `piece`, and the first bytes of that one, are there.
    Loading {
        /// The piece that is being written.
        piece: usize,
        /// Bytes of it that are there.
        written: usize,
    },
    /// On the device.
    Resident,
}

/// The set of a function, and where its constants are found: one entry per constant of the bundle,
/// in their order.
#[derive(Clone, Debug)]
pub(super) struct Membership {
    pub(super) set: ItemId,
    pub(super) constants: Box<[ConstantId]>,
}

/// The next bytes to be written for a set that is being loaded.
pub(super) struct Chunk {
    pub(super) to: DeviceOffset,
    /// In the weights of the set's first function.
    pub(super) from: Range<usize>,
}

impl Constants {
    pub(super) fn new(granule: u64) -> Constants {
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
    pub(super) fn join(&mut self, function: FunctionId, specs: &[ConstantSpec], class: Class) -> Membership {
        let constants: Box<[ConstantId]> =
            specs.iter().map(|constant| self.constant(constant.digest, constant.bytes)).collect();
        let mut members: Vec<ConstantId> = constants.to_vec();
        members.sort_unstable();
        members.dedup();
        if let Some(&set) = self.by_members.get(&members[..]) {
            let known = self.set_mut(set);
            known.functions.insert(function);
            known.class = known.class.min(class);
            return Membership { set, constants };
        }
        let set = ItemId(self.next());
        let mut ranges: BTreeMap<ConstantId, Range<usize>> = BTreeMap::new();
        for (&id, constant) in constants.iter().zip(specs) {
            ranges.entry(id).or_insert(constant.offset as usize..(constant.offset + constant.bytes) as usize);
        }
        members.iter().for_each(|id| self.constant_mut(*id).sets += 1);
        // In the order of the file, so that it is read from front to back.
        let mut pieces: Vec<_> = ranges.into_iter().collect();
        pieces.sort_by_key(|(_, range)| range.start);
        let state = if pieces.is_empty() { SetState::Resident } else { SetState::Away };
        let functions = BTreeSet::from([function]);
        let new = Set { functions, cold: BTreeSet::new(), class, pieces: pieces.into(), state, pins: 0, generation: 0 };
        self.sets.insert(set, new);
        self.by_members.insert(members.into(), set);
        Membership { set, constants }
    }

    /// A function of this set is unloaded. The last one takes the set along, with all memory that
    /// no other set needs; `None` while there are others.
    pub(super) fn leave(&mut self, function: FunctionId, set: ItemId) -> Option<Vec<Place>> {
        let was_there = self.set_mut(set).functions.remove(&function);
        assert!(was_there, "a function leaves its set once");
        if !self.sets[&set].functions.is_empty() {
            return None;
        }
        assert_eq!(self.sets[&set].pins, 0, "no function of the set is left that could be invoked");
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

    /// Holds every constant of a set. What has no place yet ([`Constants::unplaced`]) is to be
    /// given one with [`Constants::place`].
    pub(super) fn hold(&mut self, set: ItemId) {
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

    /// Lets go of a set that is held. What was there stays as leftovers; the places of what was on
    /// its way are nobody's.
    pub(super) fn let_go(&mut self, set: ItemId) -> Vec<Place> {
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
    pub(super) fn held(&self) -> Vec<ItemId> {
        self.sets
            .iter()
            .filter(|(_, set)| set.state != SetState::Away && !set.pieces.is_empty())
            .map(|(id, _)| *id)
            .collect()
    }

    /// The place of the oldest leftover, which is gone then; `None` if there is none.
    pub(super) fn reclaim_leftover(&mut self) -> Option<Place> {
        let (_, &id) = self.leftovers.first_key_value()?;
        self.drop_leftover(id)
    }

    fn drop_leftover(&mut self, id: ConstantId) -> Option<Place> {
        let constant = self.constants.get_mut(&id).expect("a leftover is known");
        let leftover = constant.leftover.take()?;
        constant.whole = false;
        self.leftovers.remove(&leftover);
        self.leftover_bytes -= constant.bytes;
        self.device_bytes -= constant.bytes;
        Some(constant.place.take().expect("a leftover has a place"))
    }

    /// Constants of a set that have no place on the device, with what they take.
    pub(super) fn unplaced(&self, set: ItemId) -> Vec<(ConstantId, u64)> {
        let pieces = self.sets[&set].pieces.iter().map(|(id, _)| (*id, &self.constants[id]));
        pieces.filter(|(_, constant)| constant.place.is_none()).map(|(id, constant)| (id, constant.bytes)).collect()
    }

    /// Takes these places from held constants, since the device has no memory there; the sets that
    /// hold them.
    pub(super) fn unplace(&mut self, places: &[Place]) -> BTreeSet<ItemId> {
        let mut gone = HashSet::new();
        for (id, constant) in &mut self.constants {
            if constant.place.is_some_and(|place| places.contains(&place)) {
                (constant.place, constant.whole) = (None, false);
                self.device_bytes -= constant.bytes;
                gone.insert(*id);
            }
        }
        let holds = |set: &Set| set.state != SetState::Away && set.pieces.iter().any(|(id, _)| gone.contains(id));
        self.sets.iter().filter(|(_, set)| holds(set)).map(|(id, _)| *id).collect()
    }

    /// Whether a set exists.
    pub(super) fn contains(&self, set: ItemId) -> bool {
        self.sets.contains_key(&set)
    }

    /// The functions of a set.
    pub(super) fn functions(&self, set: ItemId) -> &BTreeSet<FunctionId> {
        &self.sets[&set].functions
    }

    /// The cold invocations that name a set, in turn.
    pub(super) fn cold(&self, set: ItemId) -> &BTreeSet<Turn> {
        &self.sets[&set].cold
    }

    /// An invocation that names a set is cold from now on, or no more.
    pub(super) fn note_cold(&mut self, set: ItemId, turn: Turn, is_cold: bool) {
        let cold = &mut self.set_mut(set).cold;
        let _ = if is_cold { cold.insert(turn) } else { cold.remove(&turn) };
    }

    /// Gives a held constant its place.
    pub(super) fn place(&mut self, id: ConstantId, place: Place) {
        let constant = self.constant_mut(id);
        assert!(constant.holders > 0 && constant.place.is_none(), "a held constant is placed once");
        constant.place = Some(place);
        self.device_bytes += self.constants[&id].bytes;
    }

    /// How many bytes of device memory each set is answerable for: a constant that several sets
    /// hold is divided among them, so that together they come to all there are.
    pub(super) fn shares(&self) -> BTreeMap<ItemId, u64> {
        let mut seen: HashMap<ConstantId, usize> = HashMap::new();
        let mut shares = BTreeMap::new();
        for (set, Set { pieces, .. }) in self.sets.iter().filter(|(_, set)| set.state != SetState::Away) {
            let share: &mut u64 = shares.entry(*set).or_default();
            for (id, _) in pieces.iter() {
                let held = &self.constants[id];
                let bytes = held.place.as_ref().map_or(0, |place| place.bytes);
                let index = seen.entry(*id).or_default();
                *share += divide(bytes, held.holders as usize).nth(*index).unwrap_or_default();
                *index += 1;
            }
        }
        shares
    }

    /// The ranges of a set's weights that are not on the device, ascending.
    pub(super) fn missing(&self, set: ItemId) -> Vec<Range<usize>> {
        let missing = self.sets[&set]
            .pieces
            .iter()
            .filter(|(id, range)| !self.constants[id].whole && !range.is_empty())
            .map(|(_, range)| range.clone());
        missing.collect()
    }

    /// The next bytes to write, at most so many and only such in front of `staged` in the weights;
    /// `None` if there are none, which may be because all are there and the set is now resident.
    pub(super) fn next_chunk(&mut self, set: ItemId, bytes_max: usize, staged: usize) -> Option<Chunk> {
        let Set { state: SetState::Loading { mut piece, mut written }, ref pieces, .. } = self.sets[&set] else {
            return None;
        };
        let pieces = Arc::clone(pieces);
        while let Some((id, range)) = pieces.get(piece) {
            let constant = self.constant_mut(*id);
            // Another set may have loaded it.
            constant.whole |= written == range.len();
            if constant.whole {
                (piece, written) = (piece + 1, 0);
                continue;
            }
            let base = constant.place.as_ref().expect("a set that is loaded has places").at;
            let bytes = bytes_max.min(range.len() - written).min(staged.saturating_sub(range.start + written));
            if bytes == 0 {
                self.set_mut(set).state = SetState::Loading { piece, written };
                return None;
            }
            let from = range.start + written..range.start + written + bytes;
            let set = self.set_mut(set);
            set.state = SetState::Loading { piece, written: written + bytes };
            return Some(Chunk { to: DeviceOffset(base.0 + written as u64), from });
        }
        self.set_mut(set).state = SetState::Resident;
        None
    }

    /// An invocation needs the set in place. Returns whether it is the first.
    pub(super) fn pin(&mut self, set: ItemId) -> bool {
        let set = self.set_mut(set);
        set.pins += 1;
        set.pins == 1
    }

    /// An invocation does not need the set any more. Returns whether it was the last.
    pub(super) fn unpin(&mut self, set: ItemId) -> bool {
        let set = self.set_mut(set);
        set.pins = set.pins.checked_sub(1).expect("what is unpinned was pinned");
        set.pins == 0
    }

    pub(super) fn is_pinned(&self, set: ItemId) -> bool {
        self.sets[&set].pins > 0
    }

    pub(super) fn state(&self, set: ItemId) -> SetState {
        self.sets[&set].state
    }

    pub(super) fn is_resident(&self, set: ItemId) -> bool {
        self.state(set) == SetState::Resident
    }

    pub(super) fn class(&self, set: ItemId) -> Class {
        self.sets[&set].class
    }

    pub(super) fn generation(&self, set: ItemId) -> u64 {
        self.sets[&set].generation
    }

    /// What a set takes on the device.
    pub(super) fn set_bytes(&self, set: ItemId) -> u64 {
        self.sets[&set].pieces.iter().map(|(id, _)| self.constants[id].bytes).sum()
    }

    /// What a set consists of: each constant once, with what it takes on the device.
    pub(super) fn members(&self, set: ItemId) -> impl Iterator<Item = (ConstantId, u64)> {
        self.sets[&set].pieces.iter().map(|(id, _)| (*id, self.constants[id].bytes))
    }

    /// What these sets take together.
    pub(super) fn bytes_of(&self, sets: &[ItemId]) -> u64 {
        let mut seen = HashSet::new();
        sets.iter().flat_map(|&set| self.members(set)).filter(|(id, _)| seen.insert(*id)).map(|(_, bytes)| bytes).sum()
    }

    /// How much of a set is on the device, leftovers included.
    pub(super) fn set_device_bytes(&self, set: ItemId) -> u64 {
        let constants = self.sets[&set].pieces.iter().map(|(id, _)| &self.constants[id]);
        constants.filter(|constant| constant.whole).map(|constant| constant.bytes).sum()
    }

    /// What the constants of all functions would take on the device.
    pub(super) fn bytes(&self) -> u64 {
        self.constants.values().map(|constant| constant.bytes).sum()
    }

    /// What constants take on the device now.
    pub(super) fn device_bytes(&self) -> u64 {
        self.device_bytes
    }

    /// How much of that nobody holds.
    pub(super) fn leftover_bytes(&self) -> u64 {
        self.leftover_bytes
    }

    /// Where a constant of a resident set is.
    fn offset(&self, id: ConstantId) -> DeviceOffset {
        self.constants[&id].place.as_ref().expect("a constant of a resident set has a place").at
    }

    /// The places of those constants of a function that have one.
    pub(super) fn places(&self, membership: &Membership) -> Vec<DeviceOffset> {
        membership.constants.iter().filter_map(|id| Some(self.constants[id].place.as_ref()?.at)).collect()
    }

    /// Where the constants of a function are whose set is resident.
    pub(super) fn offsets(&self, membership: &Membership) -> Box<[DeviceOffset]> {
        membership.constants.iter().map(|&id| self.offset(id)).collect()
    }

    fn constant(&mut self, digest: [u8; 32], bytes: u64) -> ConstantId {
        if let Some(&id) = self.by_digest.get(&digest) {
            return id;
        }
        let id = ConstantId(self.next());
        // It is a range of a file, so that rounding it up does not overflow.
        let bytes = granules(bytes, self.granule).unwrap_or(bytes);
        self.constants
            .insert(id, Constant { digest, bytes, sets: 0, holders: 0, place: None, whole: false, leftover: None });
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
pub fn divide(whole: u64, parts: usize) -> impl Iterator<Item = u64> {
    let (part, left) = (whole / parts.max(1) as u64, whole % parts.max(1) as u64);
    (0..parts as u64).map(move |index| part + u64::from(index < left))
}

#[cfg(test)]
mod tests {
    use super::super::event::MemorySpec;
    use super::super::ledger::{ALIGN, Ledger, Purpose};
    use super::*;

    fn memory() -> Ledger {
        let (memory_bytes, constants_base) = (1 << 20, DeviceOffset(1 << 40));
        Ledger::new(&MemorySpec {
            memory_bytes,
            constants_base,
            constants_bytes: memory_bytes,
            constants_granule: ALIGN,
            limit_bytes: None,
            overcommit: 1.0,
        })
    }

    fn free(memory: &mut Ledger, places: impl IntoIterator<Item = Place>) {
        places.into_iter().for_each(|place| memory.free(place));
    }

    /// Constants of these sizes, with this content.
    fn bundle(constants: &[(u64, u8)]) -> Vec<ConstantSpec> {
        let mut offset = 0;
        let spec = |&(bytes, fill): &(u64, u8)| {
            let at = offset;
            offset += bytes.next_multiple_of(ALIGN);
            ConstantSpec { digest: [fill; 32], bytes, offset: at }
        };
        constants.iter().map(spec).collect()
    }

    /// Brings a set to the device, and says how many bytes that moved.
    fn load(constants: &mut Constants, memory: &mut Ledger, set: ItemId) -> usize {
        constants.hold(set);
        for (id, bytes) in constants.unplaced(set) {
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
        let (mut constants, mut memory) = (Constants::new(ALIGN), memory());
        let (first, second) = (bundle(&[(1000, 1), (300, 2), (1000, 1)]), bundle(&[(300, 2), (500, 3)]));
        let a = constants.join(FunctionId(1), &first, Class::BestEffort);
        assert_eq!((constants.state(a.set), constants.unplaced(a.set).len()), (SetState::Away, 2));
        assert_eq!(load(&mut constants, &mut memory, a.set), 1300);
        assert_eq!(constants.offset(a.constants[0]), constants.offset(a.constants[2]));
        let again = constants.join(FunctionId(2), &first, Class::BestEffort);
        assert_eq!(again.set, a.set);
        let b = constants.join(FunctionId(3), &second, Class::BestEffort);
        assert_eq!(constants.unplaced(b.set).len(), 1);
        assert_eq!(load(&mut constants, &mut memory, b.set), 500);
        assert_eq!(
            (memory.used(), constants.offset(b.constants[0])),
            (1024 + 512 + 512, constants.offset(a.constants[1]))
        );
        free(&mut memory, constants.leave(FunctionId(1), a.set).into_iter().flatten());
        free(&mut memory, constants.leave(FunctionId(2), a.set).into_iter().flatten());
        assert_eq!(memory.used(), 512 + 512, "what the second function needs");
        free(&mut memory, constants.leave(FunctionId(3), b.set).into_iter().flatten());
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
        let (mut constants, mut memory) = (Constants::new(ALIGN), memory());
        let a = constants.join(FunctionId(4), &bundle(&[(1000, 1), (300, 2), (700, 3)]), Class::BestEffort);
        let b = constants.join(FunctionId(5), &bundle(&[(300, 2)]), Class::RealTime);
        load(&mut constants, &mut memory, a.set);
        load(&mut constants, &mut memory, b.set);
        free(&mut memory, constants.let_go(a.set));
        assert_eq!(
            (memory.used(), constants.leftover_bytes()),
            (1024 + 512 + 768, 1024 + 768),
            "what another set holds is none"
        );
        free(&mut memory, constants.reclaim_leftover());
        assert_eq!(
            (memory.used(), constants.device_bytes(), constants.set_device_bytes(a.set)),
            (512 + 768, 512 + 768, 512 + 768)
        );
        let old = constants.generation(a.set);
        assert_eq!(load(&mut constants, &mut memory, a.set), 1000, "only what is gone is loaded again");
        assert_eq!((constants.leftover_bytes(), constants.reclaim_leftover()), (0, None));
        assert_ne!(constants.generation(a.set), old);
        free(&mut memory, constants.let_go(a.set));
        for (function, set) in [(4, a.set), (5, b.set)] {
            free(&mut memory, constants.leave(FunctionId(function), set).expect("its last function"));
        }
        assert_eq!((memory.used(), constants.leftover_bytes(), constants.device_bytes()), (0, 0, 0));
    }

    #[test]
    fn what_is_half_loaded_and_let_go_leaves_nothing() {
        let (mut constants, mut memory) = (Constants::new(ALIGN), memory());
        let a = constants.join(FunctionId(6), &bundle(&[(1000, 1)]), Class::BestEffort);
        constants.hold(a.set);
        let id = constants.unplaced(a.set)[0].0;
        constants.place(id, memory.allocate(Purpose::Constant, 1000).expect("room"));
        assert_eq!(constants.next_chunk(a.set, 100, usize::MAX).map(|chunk| chunk.from), Some(0..100));
        free(&mut memory, constants.let_go(a.set));
        assert_eq!((memory.used(), constants.state(a.set), constants.reclaim_leftover()), (0, SetState::Away, None));
        assert_eq!(load(&mut constants, &mut memory, a.set), 1000);
    }

    #[test]
    fn a_function_without_constants_is_always_there() {
        let mut constants = Constants::new(ALIGN);
        let nothing = constants.join(FunctionId(7), &bundle(&[]), Class::BestEffort);
        assert_eq!(constants.state(nothing.set), SetState::Resident);
        assert_eq!(constants.leave(FunctionId(7), nothing.set), Some(Vec::new()));
    }
}
