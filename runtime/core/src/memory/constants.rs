//! Constants on the device, stored once by content.
//!
//! A *constant* is one buffer's bytes, identified by their digest. A *set* is all constants of one
//! function; functions with equal constants share one set, and sets may share constants. Sets are
//! loaded and reclaimed as a whole: a set that is loaded or being loaded *holds* its constants.
//! Constants that no set holds any more stay *cached*: their memory is reclaimed when needed,
//! oldest first, and a set that is loaded before that finds them still there. The caller decides
//! where constants are: it assigns places, and gets them back when they are no longer needed.
//!
//! Invocations *pin* the sets they need; a pinned set stays on the device. Which sets are reclaimed
//! is decided in [`crate::residency`] and `admission.rs`.

use super::ledger::granules;
use super::spec::{ConstantSpec, FunctionId, Place, Turn};
use crate::ids::{Class, DeviceOffset};
use crate::residency::ItemId;
use foldhash::fast::FixedState;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// A constant; valid as long as a set names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ConstantId(u64);

/// All constants and sets of the loaded functions.
#[derive(Debug)]
pub(super) struct Constants {
    /// Allocation granule of constants on the device, in bytes.
    granule: u64,
    constants: HashMap<ConstantId, Constant, FixedState>,
    by_digest: HashMap<[u8; 32], ConstantId>,
    sets: BTreeMap<ItemId, Set>,
    by_members: HashMap<Box<[ConstantId]>, ItemId>,
    /// Cached constants in the order in which they were released.
    cached: BTreeMap<u64, ConstantId>,
    cached_bytes: u64,
    device_bytes: u64,
    /// Source of ids, generations and release times; increasing.
    count: u64,
}

#[derive(Debug)]
struct Constant {
    digest: [u8; 32],
    /// Bytes on the device: its size rounded up to the granule.
    bytes: u64,
    /// Sets that name it.
    sets: u32,
    /// Sets that hold it.
    holders: u32,
    place: Option<Place>,
    /// Whether all of its bytes are on the device.
    whole: bool,
    /// When it was released into the cache, as a count; `None` if it is not cached.
    cached: Option<u64>,
}

/// The constants that one function, or several, need together.
#[derive(Debug)]
struct Set {
    functions: BTreeSet<FunctionId>,
    /// Cold invocations that need it.
    cold: BTreeSet<Turn>,
    /// The most urgent class of its functions so far.
    class: Class,
    /// Each constant once, with its byte range in the weights of the set's first function.
    pieces: Arc<[(ConstantId, Range<usize>)]>,
    state: SetState,
    /// Invocations that need it on the device.
    pins: u32,
    /// Changes each time the set is loaded: offsets of its constants are valid for one generation.
    generation: u64,
}

/// The state of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetState {
    /// Not on the device; it holds no constants.
    Absent,
    /// Every constant has a place. Pieces before `piece`, and the first `written` bytes of that
    /// piece, are on the device.
    Loading {
        /// The piece that is being written.
        piece: usize,
        /// Bytes of it that are written.
        written: usize,
    },
    /// On the device.
    Resident,
}

/// The set of a function, and its constants: one entry per constant of the bundle, in the bundle's
/// order.
#[derive(Clone, Debug)]
pub(super) struct Membership {
    pub(super) set: ItemId,
    pub(super) constants: Box<[ConstantId]>,
}

/// The next bytes to write for a set that is being loaded.
pub(super) struct Chunk {
    pub(super) to: DeviceOffset,
    /// Byte range in the weights of the set's first function.
    pub(super) from: Range<usize>,
}

impl Constants {
    pub(super) fn new(granule: u64) -> Constants {
        Constants {
            granule,
            constants: HashMap::default(),
            by_digest: HashMap::new(),
            sets: BTreeMap::new(),
            by_members: HashMap::new(),
            cached: BTreeMap::new(),
            cached_bytes: 0,
            device_bytes: 0,
            count: 0,
        }
    }

    /// Adds a function; its constants need not be on the device.
    pub(super) fn add_function(&mut self, function: FunctionId, specs: &[ConstantSpec], class: Class) -> Membership {
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
        // In the order of the file, so that it is read front to back.
        let mut pieces: Vec<_> = ranges.into_iter().collect();
        pieces.sort_by_key(|(_, range)| range.start);
        let state = if pieces.is_empty() { SetState::Resident } else { SetState::Absent };
        let functions = BTreeSet::from([function]);
        let new = Set { functions, cold: BTreeSet::new(), class, pieces: pieces.into(), state, pins: 0, generation: 0 };
        self.sets.insert(set, new);
        self.by_members.insert(members.into(), set);
        Membership { set, constants }
    }

    /// Removes a function from its set. With the last function the set is removed too, and the
    /// places that no other set needs are returned; `None` while the set has other functions.
    pub(super) fn remove_function(&mut self, function: FunctionId, set: ItemId) -> Option<Vec<Place>> {
        let was_there = self.set_mut(set).functions.remove(&function);
        assert!(was_there, "a function leaves its set once");
        if !self.sets[&set].functions.is_empty() {
            return None;
        }
        assert_eq!(self.sets[&set].pins, 0, "a pinned set has functions");
        let mut freed = self.release(set);
        let gone = self.sets.remove(&set).expect("present: looked up above");
        let mut members: Vec<ConstantId> = gone.pieces.iter().map(|(id, _)| *id).collect();
        members.sort_unstable();
        self.by_members.remove(&members[..]);
        for id in members {
            let constant = self.constant_mut(id);
            constant.sets -= 1;
            if constant.sets == 0 {
                freed.extend(self.drop_cached(id));
                let constant = self.constants.remove(&id).expect("present: looked up above");
                self.by_digest.remove(&constant.digest);
            }
        }
        Some(freed)
    }

    /// Makes a set hold all its constants. The caller then assigns places to those of
    /// [`Constants::unplaced`] with [`Constants::place`].
    pub(super) fn acquire(&mut self, set: ItemId) {
        assert_eq!(self.sets[&set].state, SetState::Absent, "a set is acquired once");
        for (id, _) in self.pieces(set).iter() {
            let constant = self.constant_mut(*id);
            constant.holders += 1;
            if let Some(cached) = constant.cached.take() {
                self.cached_bytes -= self.constants[id].bytes;
                self.cached.remove(&cached);
            }
        }
        let generation = self.next();
        let set = self.set_mut(set);
        (set.state, set.generation) = (SetState::Loading { piece: 0, written: 0 }, generation);
    }

    /// Releases the constants of a set. Complete ones stay cached; the places of incomplete ones
    /// are returned.
    pub(super) fn release(&mut self, set: ItemId) -> Vec<Place> {
        let mut freed = Vec::new();
        if self.sets[&set].state == SetState::Absent {
            return freed;
        }
        self.set_mut(set).state = SetState::Absent;
        for (id, _) in self.pieces(set).iter() {
            let count = self.next();
            let constant = self.constant_mut(*id);
            constant.holders -= 1;
            if constant.holders > 0 || constant.place.is_none() {
                continue;
            }
            constant.cached = Some(count);
            let (bytes, whole) = (constant.bytes, constant.whole);
            self.cached.insert(count, *id);
            self.cached_bytes += bytes;
            if !whole {
                freed.extend(self.drop_cached(*id));
            }
        }
        freed
    }

    /// The sets that hold their constants.
    pub(super) fn held(&self) -> Vec<ItemId> {
        self.sets
            .iter()
            .filter(|(_, set)| set.state != SetState::Absent && !set.pieces.is_empty())
            .map(|(id, _)| *id)
            .collect()
    }

    /// Drops the oldest cached constant and returns its place; `None` if none is cached.
    pub(super) fn reclaim_cached(&mut self) -> Option<Place> {
        let (_, &id) = self.cached.first_key_value()?;
        self.drop_cached(id)
    }

    fn drop_cached(&mut self, id: ConstantId) -> Option<Place> {
        let constant = self.constants.get_mut(&id).expect("a cached constant is known");
        let cached = constant.cached.take()?;
        constant.whole = false;
        self.cached.remove(&cached);
        self.cached_bytes -= constant.bytes;
        self.device_bytes -= constant.bytes;
        Some(constant.place.take().expect("a cached constant has a place"))
    }

    /// Constants of a set without a place on the device, with their bytes.
    pub(super) fn unplaced(&self, set: ItemId) -> Vec<(ConstantId, u64)> {
        let pieces = self.sets[&set].pieces.iter().map(|(id, _)| (*id, &self.constants[id]));
        pieces.filter(|(_, constant)| constant.place.is_none()).map(|(id, constant)| (id, constant.bytes)).collect()
    }

    /// Removes places that the device refused from their constants; returns the sets that hold
    /// these.
    pub(super) fn unplace(&mut self, places: &[Place]) -> BTreeSet<ItemId> {
        let mut gone = HashSet::new();
        for (id, constant) in &mut self.constants {
            if constant.place.is_some_and(|place| places.contains(&place)) {
                (constant.place, constant.whole) = (None, false);
                self.device_bytes -= constant.bytes;
                gone.insert(*id);
            }
        }
        let holds = |set: &Set| set.state != SetState::Absent && set.pieces.iter().any(|(id, _)| gone.contains(id));
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

    /// The cold invocations that need a set, in turn.
    pub(super) fn cold(&self, set: ItemId) -> &BTreeSet<Turn> {
        &self.sets[&set].cold
    }

    /// Records that an invocation that needs a set is cold, or no longer cold.
    pub(super) fn note_cold(&mut self, set: ItemId, turn: Turn, is_cold: bool) {
        let cold = &mut self.set_mut(set).cold;
        let _ = if is_cold { cold.insert(turn) } else { cold.remove(&turn) };
    }

    /// Assigns a place to a held constant.
    pub(super) fn place(&mut self, id: ConstantId, place: Place) {
        let constant = self.constant_mut(id);
        assert!(constant.holders > 0 && constant.place.is_none(), "a held constant is placed once");
        constant.place = Some(place);
        self.device_bytes += self.constants[&id].bytes;
    }

    /// Bytes of device memory attributed to each set. A constant that several sets hold is divided
    /// among them, so that the shares add up to the total.
    pub(super) fn shares(&self) -> BTreeMap<ItemId, u64> {
        let mut seen: HashMap<ConstantId, usize> = HashMap::new();
        let mut shares = BTreeMap::new();
        for (set, Set { pieces, .. }) in self.sets.iter().filter(|(_, set)| set.state != SetState::Absent) {
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

    /// The byte ranges of a set's weights that are not on the device, ascending.
    pub(super) fn missing(&self, set: ItemId) -> Vec<Range<usize>> {
        let missing = self.sets[&set]
            .pieces
            .iter()
            .filter(|(id, range)| !self.constants[id].whole && !range.is_empty())
            .map(|(_, range)| range.clone());
        missing.collect()
    }

    /// The next bytes to write: at most `bytes_max`, and only bytes before `staged` in the weights.
    /// `None` if there are none; if all are written, the set becomes resident.
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
            let base = constant.place.as_ref().expect("a set that is being loaded has places").at;
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

    /// Pins a set for an invocation. Returns whether this is the first pin.
    pub(super) fn pin(&mut self, set: ItemId) -> bool {
        let set = self.set_mut(set);
        set.pins += 1;
        set.pins == 1
    }

    /// Unpins a set for an invocation. Returns whether this was the last pin.
    pub(super) fn unpin(&mut self, set: ItemId) -> bool {
        let set = self.set_mut(set);
        set.pins = set.pins.checked_sub(1).expect("a set that is unpinned was pinned");
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

    /// Bytes of a set on the device.
    pub(super) fn set_bytes(&self, set: ItemId) -> u64 {
        self.sets[&set].pieces.iter().map(|(id, _)| self.constants[id].bytes).sum()
    }

    /// The constants of a set, each once, with their bytes on the device.
    pub(super) fn members(&self, set: ItemId) -> impl Iterator<Item = (ConstantId, u64)> {
        self.sets[&set].pieces.iter().map(|(id, _)| (*id, self.constants[id].bytes))
    }

    /// Bytes of several sets together; shared constants count once.
    pub(super) fn bytes_of(&self, sets: &[ItemId]) -> u64 {
        if let [only] = sets {
            return self.set_bytes(*only);
        }
        let mut seen = HashSet::with_hasher(FixedState::default());
        sets.iter().flat_map(|&set| self.members(set)).filter(|(id, _)| seen.insert(*id)).map(|(_, bytes)| bytes).sum()
    }

    /// Bytes of a set's constants that are on the device, cached ones included.
    pub(super) fn set_device_bytes(&self, set: ItemId) -> u64 {
        let constants = self.sets[&set].pieces.iter().map(|(id, _)| &self.constants[id]);
        constants.filter(|constant| constant.whole).map(|constant| constant.bytes).sum()
    }

    /// Bytes that the constants of all functions would take on the device.
    pub(super) fn bytes(&self) -> u64 {
        self.constants.values().map(|constant| constant.bytes).sum()
    }

    /// Bytes that constants take on the device now.
    pub(super) fn device_bytes(&self) -> u64 {
        self.device_bytes
    }

    /// Bytes of cached constants.
    pub(super) fn cached_bytes(&self) -> u64 {
        self.cached_bytes
    }

    /// The offset of a constant of a resident set.
    fn offset(&self, id: ConstantId) -> DeviceOffset {
        self.constants[&id].place.as_ref().expect("a constant of a resident set has a place").at
    }

    /// The offsets of those constants of a function that have a place.
    pub(super) fn places(&self, membership: &Membership) -> Vec<DeviceOffset> {
        membership.constants.iter().filter_map(|id| Some(self.constants[id].place.as_ref()?.at)).collect()
    }

    /// The offsets of the constants of a function whose set is resident.
    pub(super) fn offsets(&self, membership: &Membership) -> Box<[DeviceOffset]> {
        membership.constants.iter().map(|&id| self.offset(id)).collect()
    }

    fn constant(&mut self, digest: [u8; 32], bytes: u64) -> ConstantId {
        if let Some(&id) = self.by_digest.get(&digest) {
            return id;
        }
        let id = ConstantId(self.next());
        // Cannot overflow: it is a range of a file.
        let bytes = granules(bytes, self.granule).unwrap_or(bytes);
        self.constants
            .insert(id, Constant { digest, bytes, sets: 0, holders: 0, place: None, whole: false, cached: None });
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

/// Divides a number into equal parts; the first parts get the remainder.
pub fn divide(whole: u64, parts: usize) -> impl Iterator<Item = u64> {
    let (part, left) = (whole / parts.max(1) as u64, whole % parts.max(1) as u64);
    (0..parts as u64).map(move |index| part + u64::from(index < left))
}

#[cfg(test)]
mod tests;
