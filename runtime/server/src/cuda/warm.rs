//! A cache of the code of CUDA programs, kept between sessions and keyed by digest: the images that
//! programs have sent, the contents that the jailed compiler has read from their PTX, and the shapes
//! of their stored functions. A program that starts again sends no large image, waits for no jail,
//! and stores its first run. Nothing is shared between tenants.

use super::counts::Counts;
use crate::compiler::{ModuleContents, ModuleKernel, ModuleVariable};
use crate::limits::{CUDA_WARM_BYTES_MAX, CUDA_WARM_BYTES_PER_TENANT_MAX};
use atoll_engine::Tenant;
use atoll_session::KnownShape;
use atoll_session::limits::SHAPE_BYTES_MAX;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

/// A value counts as at least this many bytes, which limits the number of values.
const VALUE_BYTES_MIN: usize = 16 << 10;

/// A SHA-256.
type Digest = [u8; 32];

/// PTX, and the contents that the jailed compiler has read from it.
#[derive(Debug)]
pub(super) struct ReadText {
    pub(super) ptx: String,
    pub(super) contents: ModuleContents,
    pub(super) has_traps: bool,
}

impl ReadText {
    fn bytes(&self) -> usize {
        let ModuleContents { kernels, variables } = &self.contents;
        let kernel = |one: &ModuleKernel| size_of_val(one) + one.name.len() + size_of_val(one.params.as_slice());
        let variable = |one: &ModuleVariable| size_of_val(one) + one.name.len() + one.content.len();
        let kernels: usize = kernels.iter().map(kernel).sum();
        self.ptx.len() + kernels + variables.iter().map(variable).sum::<usize>()
    }
}

/// The cached code of all tenants.
pub(crate) struct Warm {
    counts: Arc<Counts>,
    kept: Mutex<Recent<(Tenant, Digest), Kept>>,
}

#[derive(Clone)]
enum Kept {
    Image(Arc<[u8]>),
    Text(Arc<ReadText>),
    Shape(Arc<KnownShape>),
}

impl Warm {
    pub(crate) fn new(counts: Arc<Counts>) -> Warm {
        Warm { counts, kept: Mutex::new(Recent::new(CUDA_WARM_BYTES_MAX, CUDA_WARM_BYTES_PER_TENANT_MAX)) }
    }

    fn find(&self, tenant: &Tenant, digest: &Digest) -> Option<Kept> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.find(&(tenant.clone(), *digest))
    }

    fn keep(&self, tenant: &Tenant, digest: Digest, value: Kept, bytes: usize) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.keep((tenant.clone(), digest), |(tenant, _)| tenant, value, bytes.max(VALUE_BYTES_MIN));
        self.counts.warm_bytes.store(kept.bytes as u64, Relaxed);
    }

    /// An image of the tenant's earlier sessions.
    pub(super) fn image(&self, tenant: &Tenant, digest: &Digest) -> Option<Arc<[u8]>> {
        let Kept::Image(image) = self.find(tenant, digest)? else { return None };
        self.counts.warm_images.fetch_add(1, Relaxed);
        Some(image)
    }

    /// Keeps an image for later sessions.
    pub(super) fn keep_image(&self, tenant: &Tenant, digest: Digest, image: &Arc<[u8]>) {
        self.keep(tenant, digest, Kept::Image(image.clone()), image.len());
    }

    /// PTX that the jailed compiler has read for the tenant's earlier sessions, by its
    /// [`text_digest`].
    pub(super) fn text(&self, tenant: &Tenant, digest: &Digest) -> Option<Arc<ReadText>> {
        let Kept::Text(text) = self.find(tenant, digest)? else { return None };
        self.counts.warm_texts.fetch_add(1, Relaxed);
        Some(text)
    }

    /// Keeps PTX that the jailed compiler has read, for later sessions.
    pub(super) fn keep_text(&self, tenant: &Tenant, digest: Digest, text: &Arc<ReadText>) {
        self.keep(tenant, digest, Kept::Text(text.clone()), text.bytes());
    }

    /// The shapes of stored functions of the tenant's earlier sessions, the most recent one first.
    pub(super) fn shapes(&self, tenant: &Tenant) -> Vec<Arc<KnownShape>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let of_tenant = kept.values.iter().filter(|((owner, _), _)| owner == tenant);
        let mut shapes: Vec<(u64, Arc<KnownShape>)> = of_tenant
            .filter_map(|(_, Entry { value, used, .. })| match value {
                Kept::Shape(shape) => Some((*used, shape.clone())),
                Kept::Image(_) | Kept::Text(_) => None,
            })
            .collect();
        shapes.sort_unstable_by_key(|(used, _)| Reverse(*used));
        shapes.into_iter().map(|(_, shape)| shape).collect()
    }

    /// Keeps the shape of a stored function for later sessions, unless its inputs have too many
    /// places.
    pub(super) fn keep_shape(&self, tenant: &Tenant, shape: KnownShape) {
        let bytes = size_of::<(u32, u32)>() * shape.inputs.count();
        if bytes > SHAPE_BYTES_MAX {
            return;
        }
        // The inputs of one that is kept may be others.
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.remove(&(tenant.clone(), shape.digest));
        drop(kept);
        self.keep(tenant, shape.digest, Kept::Shape(Arc::new(shape)), bytes);
    }
}

/// The digest of PTX. It differs from that of an image with the same bytes.
pub(super) fn text_digest(ptx: &str) -> Digest {
    use sha2::{Digest as _, Sha256};
    Sha256::new().chain_update(b"ptx\0").chain_update(ptx).finalize().into()
}

/// An LRU cache with a limit of bytes for each owner and one for all owners. To make room, the least
/// recently used values are dropped: those of the owner down to its limit, then those of all owners.
struct Recent<K, V> {
    values: HashMap<K, Entry<V>>,
    bytes: usize,
    most: usize,
    most_of_owner: usize,
    /// Number of accesses so far.
    now: u64,
}

struct Entry<V> {
    value: V,
    bytes: usize,
    used: u64,
}

impl<K: Clone + Eq + Hash, V: Clone> Recent<K, V> {
    fn new(most: usize, most_of_owner: usize) -> Recent<K, V> {
        Recent { values: HashMap::new(), bytes: 0, most, most_of_owner, now: 0 }
    }

    fn find(&mut self, key: &K) -> Option<V> {
        let entry = self.values.get_mut(key)?;
        self.now += 1;
        entry.used = self.now;
        Some(entry.value.clone())
    }

    /// Keeps a value unless it is larger than its owner may have. A value that is there already, with
    /// as many bytes, only becomes the most recently used one.
    fn keep<O: PartialEq>(&mut self, key: K, owner: impl Fn(&K) -> &O, value: V, bytes: usize) {
        if bytes > self.most_of_owner.min(self.most) {
            return;
        }
        self.now += 1;
        if let Some(entry) = self.values.get_mut(&key).filter(|entry| entry.bytes == bytes) {
            entry.used = self.now;
            return;
        }
        self.remove(&key);
        self.make_room(|other| owner(other) == owner(&key), self.most_of_owner - bytes);
        if self.bytes > self.most - bytes {
            self.make_room(|_| true, self.most - bytes);
        }
        self.bytes += bytes;
        self.values.insert(key, Entry { value, bytes, used: self.now });
    }

    /// Drops the least recently used of some values, until they have at most this many bytes.
    fn make_room(&mut self, is_one: impl Fn(&K) -> bool, most: usize) {
        let ones = || self.values.iter().filter(|(key, _)| is_one(key));
        let mut bytes: usize = ones().map(|(_, entry)| entry.bytes).sum();
        if bytes <= most {
            return;
        }
        let mut ones: Vec<(u64, usize, K)> =
            ones().map(|(key, entry)| (entry.used, entry.bytes, key.clone())).collect();
        ones.sort_unstable_by_key(|(used, ..)| *used);
        for (_, dropped, key) in ones {
            if bytes <= most {
                return;
            }
            bytes -= dropped;
            self.remove(&key);
        }
    }

    fn remove(&mut self, key: &K) {
        if let Some(entry) = self.values.remove(key) {
            self.bytes -= entry.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_session::Places;

    #[test]
    fn the_least_recently_used_values_of_the_owner_are_dropped_first() {
        let mut recent = Recent::new(100, 60);
        fn owner(key: &(char, u32)) -> &char {
            &key.0
        }
        let keep = |recent: &mut Recent<(char, u32), u32>, key, bytes| recent.keep(key, owner, key.1, bytes);
        keep(&mut recent, ('a', 1), 30);
        keep(&mut recent, ('b', 1), 30);
        keep(&mut recent, ('a', 2), 30);
        assert_eq!((recent.find(&('a', 1)), recent.bytes), (Some(1), 90));
        // The owner has no room, although there would be some.
        keep(&mut recent, ('a', 3), 5);
        assert_eq!([2, 1, 3].map(|at| recent.find(&('a', at)).is_some()), [false, true, true]);
        assert!(recent.find(&('b', 1)).is_some());
        // There is no room: the oldest value of all goes.
        keep(&mut recent, ('c', 1), 40);
        assert_eq!([recent.find(&('a', 1)), recent.find(&('a', 3))], [None, Some(3)]);
        assert_eq!((recent.bytes, recent.values.len()), (75, 3));
        // The same value again counts once, and one that is too large is not kept.
        keep(&mut recent, ('c', 1), 41);
        keep(&mut recent, ('d', 1), 61);
        assert_eq!((recent.bytes, recent.values.len()), (76, 3));
    }

    #[test]
    fn a_value_that_is_kept_again_is_the_most_recently_used_one() {
        let mut recent = Recent::new(100, 60);
        let keep = |recent: &mut Recent<char, char>, key, bytes| recent.keep(key, |key| key, key, bytes);
        for key in ['a', 'b', 'a'] {
            keep(&mut recent, key, 30);
        }
        assert_eq!(recent.bytes, 60);
        keep(&mut recent, 'c', 41);
        assert_eq!(['a', 'b', 'c'].map(|key| recent.find(&key)), [Some('a'), None, Some('c')]);
    }

    #[test]
    fn tenants_share_nothing() {
        let counts = Arc::new(Counts::default());
        let warm = Warm::new(counts.clone());
        let (one, other): (Tenant, Tenant) = ("one".parse().unwrap(), "other".parse().unwrap());
        let image: Arc<[u8]> = vec![7; 100].into();
        warm.keep_image(&one, [1; 32], &image);
        assert_eq!(warm.image(&one, &[1; 32]).as_deref(), Some(&[7; 100][..]));
        assert!(warm.image(&other, &[1; 32]).is_none() && warm.text(&one, &[1; 32]).is_none());
        assert_eq!(counts.warm_bytes.load(Relaxed), VALUE_BYTES_MIN as u64);
        assert_eq!(counts.warm_images.load(Relaxed), 1);
        let shape = |digest, bytes: &[u32]| {
            let bytes: Vec<u8> = bytes.iter().flat_map(|number| number.to_le_bytes()).collect();
            KnownShape { digest: [digest; 32], inputs: Places::read(&bytes, 1 << 20).unwrap() }
        };
        for kept in [shape(1, &[]), shape(2, &[]), shape(3, &[0, 1]), shape(2, &[8, 9])] {
            warm.keep_shape(&one, kept);
        }
        let digests = |tenant| warm.shapes(tenant).iter().map(|shape| shape.digest[0]).collect::<Vec<u8>>();
        assert_eq!((digests(&one), digests(&other)), (vec![2, 3, 1], Vec::new()));
        assert_eq!(*warm.shapes(&one)[0], shape(2, &[8, 9]), "the latest one replaces the former one");
        warm.keep_shape(&other, shape(4, &(0..2 + SHAPE_BYTES_MAX as u32 / 4).collect::<Vec<u32>>()));
        assert!(warm.shapes(&other).is_empty(), "it has too many inputs");
        assert_ne!(text_digest("a"), text_digest("b"));
    }
}
