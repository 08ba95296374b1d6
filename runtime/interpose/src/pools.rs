//! Pools of device memory. They exist only in this library: memory of all pools is from the
//! session's memory, and returns there when it is freed, so a pool reserves what is in use. Each
//! pool counts its memory and keeps its attributes.

use atoll_session::Code;
use std::collections::{BTreeMap, HashMap};

/// The pool that every device has.
pub(crate) const DEFAULT: u32 = 1;

/// Attributes of a pool, by the driver's numbers less one.
const REUSE: std::ops::Range<usize> = 0..3;
const THRESHOLD: usize = 3;
const RESERVED: [usize; 2] = [4, 5];
const USED: [usize; 2] = [6, 7];

/// A pool.
#[derive(Clone, Debug)]
struct Pool {
    attributes: [u64; 8],
    /// Its greatest size in bytes; 0 for no limit.
    max_bytes: u64,
}

/// An attribute of a pool: a number of 4 bytes or one of 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attribute {
    Flag(i32),
    Bytes(u64),
}

/// All pools of the device.
#[derive(Debug)]
pub(crate) struct Pools {
    pools: BTreeMap<u32, Pool>,
    /// The pool of allocations that name none.
    current: u32,
    last: u32,
    /// Allocations that are not freed: their pools and sizes. A pool may have been destroyed.
    allocations: HashMap<u64, (u32, u64)>,
}

impl Pool {
    fn new(max_bytes: u64) -> Pool {
        let mut attributes = [0; 8];
        attributes[REUSE].fill(1);
        Pool { attributes, max_bytes }
    }

    fn count(&mut self, used: u64) {
        for [current, high] in [RESERVED, USED] {
            self.attributes[current] = used;
            self.attributes[high] = self.attributes[high].max(used);
        }
    }
}

impl Default for Pools {
    fn default() -> Pools {
        let pools = BTreeMap::from([(DEFAULT, Pool::new(0))]);
        Pools { pools, current: DEFAULT, last: DEFAULT, allocations: HashMap::new() }
    }
}

impl Pools {
    pub(crate) fn create(&mut self, max_bytes: u64) -> Result<u32, Code> {
        self.last = self.last.checked_add(1).ok_or(Code::OUT_OF_MEMORY)?;
        self.pools.insert(self.last, Pool::new(max_bytes));
        Ok(self.last)
    }

    /// Destroys a pool. Its allocations stay until they are freed.
    pub(crate) fn destroy(&mut self, pool: u32) -> Result<(), Code> {
        if pool == DEFAULT {
            return Err(Code::INVALID_VALUE);
        }
        self.pools.remove(&pool).ok_or(Code::INVALID_VALUE)?;
        if self.current == pool {
            self.current = DEFAULT;
        }
        Ok(())
    }

    pub(crate) fn check(&self, pool: u32) -> Result<(), Code> {
        if self.pools.contains_key(&pool) { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }

    pub(crate) fn current(&self) -> u32 {
        self.current
    }

    pub(crate) fn set_current(&mut self, pool: u32) -> Result<(), Code> {
        self.check(pool)?;
        self.current = pool;
        Ok(())
    }

    /// Returns an error if a pool cannot grow by this size.
    pub(crate) fn admit(&self, pool: u32, bytes: u64) -> Result<(), Code> {
        let known = self.pools.get(&pool).ok_or(Code::INVALID_VALUE)?;
        let used = known.attributes[USED[0]].saturating_add(bytes);
        if known.max_bytes > 0 && used > known.max_bytes { Err(Code::OUT_OF_MEMORY) } else { Ok(()) }
    }

    /// Notes an allocation from a pool.
    pub(crate) fn allocated(&mut self, pool: u32, at: u64, bytes: u64) {
        self.allocations.insert(at, (pool, bytes));
        if let Some(pool) = self.pools.get_mut(&pool) {
            pool.count(pool.attributes[USED[0]].saturating_add(bytes));
        }
    }

    /// Notes that memory was freed, which may be from no pool.
    pub(crate) fn freed(&mut self, at: u64) {
        let Some((pool, bytes)) = self.allocations.remove(&at) else { return };
        if let Some(pool) = self.pools.get_mut(&pool) {
            pool.count(pool.attributes[USED[0]].saturating_sub(bytes));
        }
    }

    /// Notes that all memory was freed for which the predicate is false.
    pub(crate) fn retain(&mut self, exists: impl Fn(u64) -> bool) {
        let gone: Vec<u64> = self.allocations.keys().copied().filter(|at| !exists(*at)).collect();
        gone.into_iter().for_each(|at| self.freed(at));
    }

    /// An attribute by the driver's number.
    pub(crate) fn attribute(&self, pool: u32, number: i32) -> Result<Attribute, Code> {
        let known = self.pools.get(&pool).ok_or(Code::INVALID_VALUE)?;
        let index = usize::try_from(i64::from(number) - 1).map_err(|_| Code::INVALID_VALUE)?;
        let value = *known.attributes.get(index).ok_or(Code::INVALID_VALUE)?;
        Ok(if REUSE.contains(&index) { Attribute::Flag(value as i32) } else { Attribute::Bytes(value) })
    }

    /// Sets an attribute. The highest counts may only be set to 0, which sets them to the current
    /// ones; the current counts cannot be set.
    pub(crate) fn set_attribute(&mut self, pool: u32, number: i32, value: Attribute) -> Result<(), Code> {
        let known = self.pools.get_mut(&pool).ok_or(Code::INVALID_VALUE)?;
        let index = usize::try_from(i64::from(number) - 1).map_err(|_| Code::INVALID_VALUE)?;
        match value {
            Attribute::Flag(flag) if REUSE.contains(&index) => known.attributes[index] = u64::from(flag != 0),
            Attribute::Bytes(bytes) if index == THRESHOLD => known.attributes[index] = bytes,
            Attribute::Bytes(0) if index == RESERVED[1] || index == USED[1] => {
                known.attributes[index] = known.attributes[index - 1];
            }
            _ => return Err(Code::INVALID_VALUE),
        }
        Ok(())
    }
}
