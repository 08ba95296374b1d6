//! cuBLASLt: descriptors, heuristics and products.

use super::entry_points;
use crate::checks::sizes;
use crate::gemm::{Epilogue, Gemm, Matrix, Part};
use crate::handle::{settings, with};
use crate::lt::{
    Layout, OF_LAYOUT, OF_OPERATION, OF_PREFERENCE, Operation, Plan, Preference, allocate, free, initialize, layout,
    operation, plan, preference,
};
use crate::number::{Factors, Types};
use crate::status::SUCCESS;
use atoll_cuda_api::types::{CUstream, c_int};
use atoll_cuda_library::{At, HandleId, Status};

/// The name under which combinations that are not supported are printed.
const MATMUL: &str = "cublasLtMatmul";

/// An algorithm: there is one, and its words are fixed.
type Algorithm = [u64; 8];
const ALGORITHM: Algorithm = [u64::from_le_bytes(*b"gemm    "), 0, 0, 0, 0, 0, 0, 0];

/// A result of heuristics.
#[derive(Clone, Copy)]
#[repr(C)]
struct Found {
    algorithm: Algorithm,
    workspace_bytes: usize,
    status: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

const _: () = assert!(size_of::<Found>() == 96);

const FOUND: Found = Found { algorithm: ALGORITHM, workspace_bytes: 0, status: SUCCESS, waves: 1.0, reserved: [0; 4] };

entry_points! {
    fn cublasLtMatrixLayoutCreate(created: At<u64>, data_type: c_int, rows: u64, columns: u64, ld: i64) {
        created.is_wanted()?;
        created.set(allocate(&layout(data_type, rows, columns, ld)))
    }

    fn cublasLtMatrixLayoutInit_internal(
        at: At<Layout>, bytes: usize, data_type: c_int, rows: u64, columns: u64, ld: i64
    ) {
        initialize(at, bytes, layout(data_type, rows, columns, ld))
    }

    fn cublasLtMatrixLayoutDestroy(at: u64) {
        free(at)
    }

    fn cublasLtMatrixLayoutSetAttribute(at: At<Layout>, attribute: c_int, buffer: At<u8>, bytes: usize) {
        OF_LAYOUT.set("cublasLtMatrixLayoutSetAttribute", at, attribute, (buffer, bytes))
    }

    fn cublasLtMatrixLayoutGetAttribute(
        at: At<Layout>, attribute: c_int, buffer: At<u8>, bytes: usize, written: At<usize>
    ) {
        OF_LAYOUT.get(at, attribute, (buffer, bytes), written)
    }

    fn cublasLtMatmulDescCreate(created: At<u64>, compute: c_int, scale: c_int) {
        created.is_wanted()?;
        created.set(allocate(&operation(compute, scale)))
    }

    fn cublasLtMatmulDescInit_internal(at: At<Operation>, bytes: usize, compute: c_int, scale: c_int) {
        initialize(at, bytes, operation(compute, scale))
    }

    fn cublasLtMatmulDescDestroy(at: u64) {
        free(at)
    }

    fn cublasLtMatmulDescSetAttribute(at: At<Operation>, attribute: c_int, buffer: At<u8>, bytes: usize) {
        OF_OPERATION.set("cublasLtMatmulDescSetAttribute", at, attribute, (buffer, bytes))
    }

    fn cublasLtMatmulDescGetAttribute(
        at: At<Operation>, attribute: c_int, buffer: At<u8>, bytes: usize, written: At<usize>
    ) {
        OF_OPERATION.get(at, attribute, (buffer, bytes), written)
    }

    fn cublasLtMatmulPreferenceCreate(created: At<u64>) {
        created.is_wanted()?;
        created.set(allocate(&preference()))
    }

    fn cublasLtMatmulPreferenceInit_internal(at: At<Preference>, bytes: usize) {
        initialize(at, bytes, preference())
    }

    fn cublasLtMatmulPreferenceDestroy(at: u64) {
        free(at)
    }

    fn cublasLtMatmulPreferenceSetAttribute(at: At<Preference>, attribute: c_int, buffer: At<u8>, bytes: usize) {
        OF_PREFERENCE.set("cublasLtMatmulPreferenceSetAttribute", at, attribute, (buffer, bytes))
    }

    fn cublasLtMatmulPreferenceGetAttribute(
        at: At<Preference>, attribute: c_int, buffer: At<u8>, bytes: usize, written: At<usize>
    ) {
        OF_PREFERENCE.get(at, attribute, (buffer, bytes), written)
    }

    fn cublasLtMatmulAlgoGetHeuristic(
        handle: HandleId, at: At<Operation>, a: At<Layout>, b: At<Layout>, c: At<Layout>, d: At<Layout>,
        _preference: At<Preference>, wanted: c_int, results: At<Found>, count: At<c_int>
    ) {
        settings(handle, |_| ())?;
        count.set(0)?;
        if wanted < 1 {
            return Err(Status::InvalidValue);
        }
        plan(MATMUL, at, [a, b, c, d])?;
        results.set(FOUND)?;
        count.set(1)
    }

    fn cublasLtMatmulAlgoGetIds(
        handle: HandleId, compute: c_int, _scale: c_int, a: c_int, b: c_int, _c: c_int, d: c_int, wanted: c_int,
        numbers: At<c_int>, count: At<c_int>
    ) {
        settings(handle, |_| ())?;
        count.set(0)?;
        if wanted < 1 {
            return Err(Status::InvalidValue);
        }
        are_supported(compute, [a, b, d])?;
        numbers.set(0)?;
        count.set(1)
    }

    fn cublasLtMatmulAlgoInit(
        handle: HandleId, compute: c_int, _scale: c_int, a: c_int, b: c_int, _c: c_int, d: c_int, number: c_int,
        algorithm: At<Algorithm>
    ) {
        settings(handle, |_| ())?;
        if number != 0 {
            return Err(Status::InvalidValue);
        }
        are_supported(compute, [a, b, d])?;
        algorithm.set(ALGORITHM)
    }

    fn cublasLtMatmulAlgoCheck(
        handle: HandleId, at: At<Operation>, a: At<Layout>, b: At<Layout>, c: At<Layout>, d: At<Layout>,
        algorithm: At<Algorithm>, result: At<Found>
    ) {
        settings(handle, |_| ())?;
        if algorithm.get()? != ALGORITHM {
            return Err(Status::InvalidValue);
        }
        plan(MATMUL, at, [a, b, c, d])?;
        result.set(FOUND)
    }

    /// The algorithm and the workspace are not used.
    fn cublasLtMatmul(
        handle: HandleId, at: At<Operation>, alpha: At<u8>, a: u64, a_layout: At<Layout>, b: u64, b_layout: At<Layout>,
        beta: At<u8>, c: u64, c_layout: At<Layout>, d: u64, d_layout: At<Layout>, _algorithm: At<Algorithm>,
        _workspace: u64, _workspace_bytes: usize, stream: CUstream
    ) {
        let plan = plan(MATMUL, at, [a_layout, b_layout, c_layout, d_layout])?;
        multiply(handle, plan, (alpha, beta), [a, b, c, d], stream)
    }
}

/// Returns an error unless products of these types of A, B and D are supported.
fn are_supported(compute: c_int, types: [c_int; 3]) -> Result<(), Status> {
    Types::of(compute, types).map(drop).ok_or(Status::NotSupported)
}

/// Launches a product in a stream, with A, B, C and D at these addresses.
fn multiply(
    handle: HandleId,
    plan: Plan,
    (alpha, beta): (At<u8>, At<u8>),
    addresses: [u64; 4],
    stream: CUstream,
) -> Result<(), Status> {
    let [m, n, k, batch] = sizes(MATMUL, plan.sizes)?;
    let factors = Factors::new(plan.types, plan.on_device, alpha, beta)?;
    let reads_inputs = k > 0 && !factors.is_alpha_zero();
    let [a_at, b_at, c_at, d_at] = addresses;
    let reads_c = !factors.on_device && !factors.is_beta_zero();
    let is_empty = m == 0 || n == 0 || batch == 0;
    let lacks_inputs = reads_inputs && (a_at == 0 || b_at == 0);
    let lacks_bias = plan.epilogue.has_bias && plan.epilogue.bias == 0;
    if !is_empty && (d_at == 0 || lacks_inputs || lacks_bias || (reads_c && c_at == 0)) {
        return Err(Status::InvalidValue);
    }
    let [a, b, c, d] = plan.matrices;
    let at = |matrix: Matrix, at: u64| Matrix { at, ..matrix };
    let epilogue = plan.epilogue.is_there.then(|| Epilogue {
        bias: plan.epilogue.bias,
        bias_batch: plan.epilogue.bias_batch.wrapping_mul(plan.types.output.bytes()),
        activation: plan.epilogue.activation,
    });
    let product = Gemm {
        types: plan.types,
        m,
        n,
        k,
        a: at(a, a_at),
        b: at(b, b_at),
        c: at(c, c_at),
        d: at(d, d_at),
        factors,
        batch,
        has_arrays: false,
        epilogue,
        part: Part::All,
    };
    with(handle, |call| {
        let own = std::mem::replace(&mut call.state.stream, stream);
        let launched = product.launch(call);
        call.state.stream = own;
        launched
    })
}
