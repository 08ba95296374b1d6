use super::super::ledger::{ALIGN, Ledger, Purpose};
use super::super::spec::MemorySpec;
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

/// Constants of the given sizes and contents.
fn bundle(constants: &[(u64, u8)]) -> Vec<ConstantSpec> {
    let mut offset = 0;
    let spec = |&(bytes, fill): &(u64, u8)| {
        let at = offset;
        offset += bytes.next_multiple_of(ALIGN);
        ConstantSpec { digest: [fill; 32], bytes, offset: at }
    };
    constants.iter().map(spec).collect()
}

/// Loads a set onto the device; returns how many bytes were written.
fn load(constants: &mut Constants, memory: &mut Ledger, set: ItemId) -> usize {
    constants.acquire(set);
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
fn equal_constants_of_several_functions_have_one_place() {
    let (mut constants, mut memory) = (Constants::new(ALIGN), memory());
    let (first, second) = (bundle(&[(1000, 1), (300, 2), (1000, 1)]), bundle(&[(300, 2), (500, 3)]));
    let a = constants.add_function(FunctionId(1), &first, Class::BestEffort);
    assert_eq!((constants.state(a.set), constants.unplaced(a.set).len()), (SetState::Absent, 2));
    assert_eq!(load(&mut constants, &mut memory, a.set), 1300);
    assert_eq!(constants.offset(a.constants[0]), constants.offset(a.constants[2]));
    let again = constants.add_function(FunctionId(2), &first, Class::BestEffort);
    assert_eq!(again.set, a.set);
    let b = constants.add_function(FunctionId(3), &second, Class::BestEffort);
    assert_eq!(constants.unplaced(b.set).len(), 1);
    assert_eq!(load(&mut constants, &mut memory, b.set), 500);
    assert_eq!((memory.used(), constants.offset(b.constants[0])), (1024 + 512 + 512, constants.offset(a.constants[1])));
    free(&mut memory, constants.remove_function(FunctionId(1), a.set).into_iter().flatten());
    free(&mut memory, constants.remove_function(FunctionId(2), a.set).into_iter().flatten());
    assert_eq!(memory.used(), 512 + 512, "the constants of the remaining function");
    free(&mut memory, constants.remove_function(FunctionId(3), b.set).into_iter().flatten());
    assert_eq!(memory.used(), 0);
    assert!(
        constants.constants.is_empty()
            && constants.sets.is_empty()
            && constants.by_digest.is_empty()
            && constants.by_members.is_empty()
    );
}

#[test]
fn released_constants_stay_cached_until_their_memory_is_needed() {
    let (mut constants, mut memory) = (Constants::new(ALIGN), memory());
    let a = constants.add_function(FunctionId(4), &bundle(&[(1000, 1), (300, 2), (700, 3)]), Class::BestEffort);
    let b = constants.add_function(FunctionId(5), &bundle(&[(300, 2)]), Class::RealTime);
    load(&mut constants, &mut memory, a.set);
    load(&mut constants, &mut memory, b.set);
    free(&mut memory, constants.release(a.set));
    assert_eq!(
        (memory.used(), constants.cached_bytes()),
        (1024 + 512 + 768, 1024 + 768),
        "constants that another set holds are not cached"
    );
    free(&mut memory, constants.reclaim_cached());
    assert_eq!(
        (memory.used(), constants.device_bytes(), constants.set_device_bytes(a.set)),
        (512 + 768, 512 + 768, 512 + 768)
    );
    let old = constants.generation(a.set);
    assert_eq!(load(&mut constants, &mut memory, a.set), 1000, "only reclaimed constants are loaded again");
    assert_eq!((constants.cached_bytes(), constants.reclaim_cached()), (0, None));
    assert_ne!(constants.generation(a.set), old);
    free(&mut memory, constants.release(a.set));
    for (function, set) in [(4, a.set), (5, b.set)] {
        free(&mut memory, constants.remove_function(FunctionId(function), set).expect("its last function"));
    }
    assert_eq!((memory.used(), constants.cached_bytes(), constants.device_bytes()), (0, 0, 0));
}

#[test]
fn releasing_a_half_loaded_set_frees_its_memory() {
    let (mut constants, mut memory) = (Constants::new(ALIGN), memory());
    let a = constants.add_function(FunctionId(6), &bundle(&[(1000, 1)]), Class::BestEffort);
    constants.acquire(a.set);
    let id = constants.unplaced(a.set)[0].0;
    constants.place(id, memory.allocate(Purpose::Constant, 1000).expect("room"));
    assert_eq!(constants.next_chunk(a.set, 100, usize::MAX).map(|chunk| chunk.from), Some(0..100));
    free(&mut memory, constants.release(a.set));
    assert_eq!((memory.used(), constants.state(a.set), constants.reclaim_cached()), (0, SetState::Absent, None));
    assert_eq!(load(&mut constants, &mut memory, a.set), 1000);
}

#[test]
fn a_function_without_constants_is_always_resident() {
    let mut constants = Constants::new(ALIGN);
    let nothing = constants.add_function(FunctionId(7), &bundle(&[]), Class::BestEffort);
    assert_eq!(constants.state(nothing.set), SetState::Resident);
    assert_eq!(constants.remove_function(FunctionId(7), nothing.set), Some(Vec::new()));
}
