//! Keeps responses of models that always give the same outputs for the same inputs, and sends them
//! again.
//!
//! It is used for models with `response_cache = true` in their settings. The key of a response is a
//! SHA-256 of the tenant that asks, the model with its bundle, and the inputs with their datatypes
//! and shapes. The tenant is part of the key because otherwise a tenant could learn from the time
//! of an answer what another tenant has asked.
//!
//! Responses of sequences and graphs are not kept, since a sequence has state, and a graph calls
//! other functions.

use crate::inference::{blocking, invoke};
use crate::limits::DECODE_INLINE_BYTES_MAX;
use crate::model::Model;
use crate::running::Permit;
use atoll_engine::{FunctionKey, Tenant};
use atoll_engine::{InputTensor, InvocationRequest, InvocationResult, InvocationTiming, InvokeError, OutputTensor};
use atoll_fleet::Inference;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::time::Instant;

/// The key of a response.
type Key = [u8; 32];

/// Bytes of an entry besides its tensors.
const ENTRY_BYTES: u64 = 256;
/// Estimated bytes of an entry, from which the size of the index is computed.
const TYPICAL_BYTES: u64 = 16 << 10;

/// The response cache. Its bytes are limited; the least useful responses are evicted first.
pub(crate) struct ResponseCache {
    entries: Cache<Key, Arc<Vec<OutputTensor>>, Bytes>,
    bytes_max: u64,
}

/// The weight of an entry.
#[derive(Clone)]
struct Bytes;

impl Weighter<Key, Arc<Vec<OutputTensor>>> for Bytes {
    fn weight(&self, _: &Key, outputs: &Arc<Vec<OutputTensor>>) -> u64 {
        let tensor = |tensor: &OutputTensor| tensor.bytes.len() as u64 + 8 * tensor.shape.len() as u64;
        ENTRY_BYTES + outputs.iter().map(tensor).sum::<u64>()
    }
}

impl ResponseCache {
    /// An empty cache of at most this many bytes; 0 keeps nothing.
    pub(crate) fn new(bytes_max: u64) -> ResponseCache {
        let entries = usize::try_from(bytes_max / TYPICAL_BYTES).unwrap_or(usize::MAX).max(1);
        ResponseCache { entries: Cache::with_weighter(entries, bytes_max, Bytes), bytes_max }
    }

    /// The bytes of all kept responses.
    pub(crate) fn bytes(&self) -> u64 {
        self.entries.weight()
    }

    /// The limit of [`ResponseCache::bytes`].
    pub(crate) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Answers a request of a tenant from the cache, or by running it.
    pub(crate) async fn answer(
        &self,
        engine: &Arc<dyn Inference>,
        permit: &Permit,
        tenant: &Tenant,
        model: &Model,
        request: InvocationRequest,
    ) -> Result<InvocationResult, InvokeError> {
        if !model.keeps_responses() || self.bytes_max == 0 {
            return run(engine, permit, model, request).await;
        }
        let begun = Instant::now();
        let (key, request) = key_of(tenant, model, request).await;
        if let Some(outputs) = self.entries.get(&key) {
            let result = kept(model, &outputs);
            model.cache_counts.note_hit(begun.elapsed());
            return Ok(result);
        }
        let looked = begun.elapsed();
        let result = run(engine, permit, model, request).await;
        let begun = Instant::now();
        if let Ok(result) = &result {
            self.entries.insert(key, Arc::new(result.outputs.clone()));
        }
        model.cache_counts.note_miss(looked + begun.elapsed());
        result
    }
}

/// Runs a request, on two devices if the model is hedged and the first one is slow.
async fn run(
    engine: &Arc<dyn Inference>,
    permit: &Permit,
    model: &Model,
    request: InvocationRequest,
) -> Result<InvocationResult, InvokeError> {
    model.check_current()?;
    match &model.hedging {
        Some(hedging) => hedging.invoke(engine, permit, request.into()).await,
        None => invoke(engine, permit, request.into()).await,
    }
}

/// The result for a response from the cache.
fn kept(model: &Model, outputs: &[OutputTensor]) -> InvocationResult {
    InvocationResult {
        outputs: outputs.to_vec(),
        retained: Vec::new(),
        handed_over_bytes: 0,
        timing: InvocationTiming::default(),
        entered_ns: 0,
        preemptions: 0,
        device: model.first_device(),
        task: None,
        placed: None,
        cold_start: false,
        load_ns: 0,
        batch: 1,
        launches: Vec::new(),
    }
}

/// Computes the key of a request, and returns the request with it. Large inputs are hashed on a
/// blocking thread.
async fn key_of(tenant: &Tenant, model: &Model, request: InvocationRequest) -> (Key, InvocationRequest) {
    let bytes: usize = request.inputs.iter().map(|input| input.bytes.len()).sum();
    let state = begin(tenant, &model.key, model.digest());
    if bytes <= DECODE_INLINE_BYTES_MAX {
        return (finish(state, &request.inputs), request);
    }
    let request = Arc::new(request);
    let read = request.clone();
    let key = blocking(move || finish(state, &read.inputs)).await;
    let request = Arc::unwrap_or_clone(request);
    // The panic hook has reported a panic. The key is then a random one, which finds nothing.
    (key.unwrap_or_else(|| Sha256::digest(format!("{:?}", Instant::now())).into()), request)
}

fn begin(tenant: &Tenant, function: &FunctionKey, digest: &str) -> Sha256 {
    let mut state = Sha256::new();
    for text in [tenant.as_str(), function.tenant.as_str(), &function.name, digest] {
        state.update((text.len() as u64).to_le_bytes());
        state.update(text);
    }
    state
}

/// Adds the inputs. Each part is preceded by its length, so that different inputs give different
/// bytes to hash.
fn finish(mut state: Sha256, inputs: &[InputTensor]) -> Key {
    for InputTensor { dtype, shape, bytes } in inputs {
        // The engine has no datatype for strings.
        let dtype = dtype.map_or("strings".to_owned(), |dtype| dtype.to_string());
        state.update((dtype.len() as u64).to_le_bytes());
        state.update(&dtype);
        state.update((shape.len() as u64).to_le_bytes());
        shape.iter().for_each(|size| state.update(size.to_le_bytes()));
        state.update((bytes.len() as u64).to_le_bytes());
        state.update(bytes);
    }
    state.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_kgraph::DType;

    fn input(dtype: DType, shape: &[i64], bytes: &[u8]) -> InputTensor {
        InputTensor { dtype: Some(dtype), shape: shape.to_vec(), bytes: bytes.to_vec() }
    }

    fn key(tenant: &str, name: &str, digest: &str, inputs: &[InputTensor]) -> Key {
        let key = FunctionKey { tenant: Tenant::default(), name: name.into() };
        finish(begin(&tenant.parse().unwrap(), &key, digest), inputs)
    }

    #[test]
    fn whatever_may_change_an_answer_or_tell_on_a_tenant_is_in_the_key() {
        let bytes = [1, 2, 3, 4];
        let one = || vec![input(DType::U8, &[4], &bytes)];
        let all = [
            key("a", "f", "d", &one()),
            key("b", "f", "d", &one()),
            key("a", "g", "d", &one()),
            key("a", "f", "e", &one()),
            key("a", "f", "d", &[input(DType::I8, &[4], &bytes)]),
            key("a", "f", "d", &[input(DType::U8, &[2, 2], &bytes)]),
            key("a", "f", "d", &[input(DType::U8, &[4], &[1, 2, 3, 5])]),
            key("a", "f", "d", &[input(DType::U8, &[2], &[1, 2]), input(DType::U8, &[2], &[3, 4])]),
            key("a", "f", "d", &[input(DType::U8, &[1], &[1]), input(DType::U8, &[3], &[2, 3, 4])]),
            key("a", "f", "d", &[]),
        ];
        let distinct: std::collections::HashSet<Key> = all.into_iter().collect();
        assert_eq!(distinct.len(), all.len());
        assert_eq!(key("a", "f", "d", &one()), all[0]);
    }

    #[test]
    fn responses_stay_within_the_limit() {
        let cache = ResponseCache::new(1 << 20);
        let outputs = |bytes: usize| Arc::new(vec![OutputTensor { shape: vec![1], bytes: vec![0; bytes] }]);
        for seed in 0..1000_u32 {
            let key: Key = Sha256::digest(seed.to_le_bytes()).into();
            cache.entries.insert(key, outputs(10_000));
            assert!(cache.bytes() <= 1 << 20, "{} bytes", cache.bytes());
        }
        assert!(cache.bytes() > 1 << 19, "and use it: {} bytes", cache.bytes());
        let large: Key = Sha256::digest("large").into();
        cache.entries.insert(large, outputs(2 << 20));
        assert!(cache.entries.get(&large).is_none(), "larger than the cache");
        assert!(cache.bytes() <= 1 << 20);
    }
}
