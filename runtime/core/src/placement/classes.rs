//! Classes of functions that run on the same devices. Free devices are kept by class instead of by
//! function.

use super::event::Suits;
use super::id_set::DeviceSet;
use crate::ids::DeviceId;
use std::collections::BTreeMap;

/// Index of a class.
pub(super) type ClassId = usize;

/// Functions that suit the same devices.
#[derive(Default)]
pub(super) struct SuitClass {
    /// Suitable devices of the pool, including draining ones.
    pub(super) members: DeviceSet,
    /// Members that are not draining.
    pub(super) active: DeviceSet,
    /// Active members with a free slot.
    pub(super) free: DeviceSet,
    key: Key,
    /// Number of functions of the class.
    functions: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// The suitable devices, sorted and without duplicates; `None` for all devices.
    only: Option<Vec<DeviceId>>,
    /// The memory that a device must have at least, in bytes.
    memory_bytes: u64,
}

impl Key {
    fn admits(&self, device: DeviceId, memory_bytes: u64) -> bool {
        let suits = self.only.as_ref().is_none_or(|only| only.binary_search(&device).is_ok());
        suits && memory_bytes >= self.memory_bytes
    }
}

/// All classes in use.
#[derive(Default)]
pub(super) struct Classes {
    by_key: BTreeMap<Key, ClassId>,
    classes: Vec<SuitClass>,
    unused: Vec<ClassId>,
    /// Memory sizes of all devices that were ever in the pool, ascending. The constants of a
    /// function are rounded up to the next of these sizes, so that there are few classes.
    sizes: Vec<u64>,
}

impl Classes {
    pub(super) fn get(&self, class: ClassId) -> &SuitClass {
        &self.classes[class]
    }

    pub(super) fn get_mut(&mut self, class: ClassId) -> &mut SuitClass {
        &mut self.classes[class]
    }

    /// Notes the memory size of a device. Returns whether the size is new, so that the classes of
    /// all functions must be recomputed.
    pub(super) fn note_size(&mut self, memory_bytes: u64) -> bool {
        let at = self.sizes.binary_search(&memory_bytes);
        if let Err(at) = at {
            self.sizes.insert(at, memory_bytes);
        }
        at.is_err()
    }

    /// Adds a function. Returns its class, and whether the class is new and has no members yet.
    pub(super) fn enter(&mut self, suits: &Suits, constant_bytes: u64) -> (ClassId, bool) {
        let only = match suits {
            Suits::All => None,
            Suits::Only(devices) => {
                let mut devices = devices.clone();
                devices.sort_unstable();
                devices.dedup();
                Some(devices)
            }
        };
        let memory_bytes = match self.sizes.partition_point(|size| *size < constant_bytes) {
            0 => 0,
            at => self.sizes.get(at).copied().unwrap_or(u64::MAX),
        };
        let key = Key { only, memory_bytes };
        if let Some(&class) = self.by_key.get(&key) {
            self.classes[class].functions += 1;
            return (class, false);
        }
        let class = self.unused.pop().unwrap_or_else(|| {
            self.classes.push(SuitClass::default());
            self.classes.len() - 1
        });
        self.by_key.insert(key.clone(), class);
        self.classes[class] = SuitClass { key, functions: 1, ..SuitClass::default() };
        (class, true)
    }

    /// Removes a function from its class. If it was the last one, removes the class and returns the
    /// devices of the class.
    pub(super) fn leave(&mut self, class: ClassId) -> Option<DeviceSet> {
        let entry = &mut self.classes[class];
        entry.functions -= 1;
        if entry.functions > 0 {
            return None;
        }
        let gone = std::mem::take(entry);
        self.by_key.remove(&gone.key);
        self.unused.push(class);
        Some(gone.members)
    }

    /// Whether a device is a member of a class.
    pub(super) fn admits(&self, class: ClassId, device: DeviceId, memory_bytes: u64) -> bool {
        self.classes[class].key.admits(device, memory_bytes)
    }

    /// The classes in use of which a device is a member.
    pub(super) fn of_device(&self, device: DeviceId, memory_bytes: u64) -> Vec<ClassId> {
        let admits = |(key, &class): (&Key, &ClassId)| key.admits(device, memory_bytes).then_some(class);
        self.by_key.iter().filter_map(admits).collect()
    }
}
