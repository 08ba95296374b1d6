//! The batching options of a function, checked against the batch axis of its bundle, and the layout
//! of rows in tensors.

use crate::binding::Binding;
use crate::config::BatchingOptions;
use crate::error::InvokeError;
use atoll_core::Class;
use atoll_core::batching::{BatchSpec, PREFERRED_MAX, ROWS_MAX};
use atoll_kgraph::{BufferKind, KernelGraph, SymbolId};

/// The position of the rows in a tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    /// Index of the dimension that counts rows.
    axis: usize,
}

/// The batching options of a function that has a batch axis.
#[derive(Debug)]
pub(crate) struct Batching {
    options: BatchingOptions,
    /// The symbol that is the number of rows.
    symbol: SymbolId,
    /// The rows of each input.
    pub(crate) inputs: Vec<Rows>,
    /// The rows of each output.
    pub(crate) outputs: Vec<Rows>,
}

impl Batching {
    /// Checks the options against a graph. The error text says why they cannot be honoured.
    pub(crate) fn new(graph: &KernelGraph, options: BatchingOptions) -> Result<Batching, String> {
        let rows = options.max_batch_size.get();
        let Some(batch) = &graph.batch else {
            return Err(format!(
                "max_batch_size is {rows}, but its rows are not proven independent; remove max_batch_size, or compile \
                 a model with a size that counts independent rows"
            ));
        };
        let own = [
            (!graph.session.is_empty(), "it keeps state between invocations"),
            (!graph.read_backs.is_empty(), "it computes sizes at run time"),
            (!graph.elements.is_empty(), "some of its sizes are elements of an input"),
        ];
        if let Some((_, why)) = own.iter().find(|(applies, _)| *applies) {
            return Err(format!("max_batch_size is {rows}, but requests cannot be gathered: {why}"));
        }
        let symbol = &graph.symbols[batch.symbol.0 as usize];
        if i64::from(rows) > symbol.max {
            let (name, max) = (&symbol.name, symbol.max);
            return Err(format!(
                "max_batch_size is {rows}, but it was compiled for at most {max} rows; compile it with \
                 `--symbol {name}=1..{rows}`, or lower max_batch_size"
            ));
        }
        if rows > ROWS_MAX {
            return Err(format!("max_batch_size is {rows}, but at most {ROWS_MAX} is possible"));
        }
        if let Some(size) = options.preferred.iter().find(|size| !(1..=rows).contains(size)) {
            return Err(format!(
                "the preferred batch size {size} is not between 1 and max_batch_size, which is {rows}"
            ));
        }
        if options.preferred.len() > PREFERRED_MAX {
            let count = options.preferred.len();
            return Err(format!("{count} preferred batch sizes are given, at most {PREFERRED_MAX} are possible"));
        }
        let rows_of = |kind| {
            let axes = graph.buffers_of(kind).map(|(id, _)| batch.axes[id.0 as usize]);
            axes.map(|axis| Rows { axis: axis.map_or(0, |axis| axis as usize) }).collect()
        };
        Ok(Batching {
            symbol: batch.symbol,
            inputs: rows_of(BufferKind::Input),
            outputs: rows_of(BufferKind::Output),
            options,
        })
    }

    /// The rows of an invocation.
    pub(crate) fn rows(&self, binding: &Binding) -> u64 {
        self.rows_in(&binding.symbols)
    }

    fn rows_in(&self, symbols: &[i64]) -> u64 {
        u64::try_from(symbols[self.symbol.0 as usize]).unwrap_or(0)
    }

    /// Rejects a request that has more rows than a batch may have, with Triton's message.
    pub(crate) fn check(&self, symbols: &[i64]) -> Result<(), InvokeError> {
        let (rows, most) = (self.rows_in(symbols), self.options.max_batch_size);
        if rows <= u64::from(most.get()) {
            return Ok(());
        }
        Err(InvokeError::BadInput(format!("inference request batch-size must be <= {most}, but it is {rows}")))
    }

    /// Largest number of rows of a batch.
    pub(crate) fn max_rows(&self) -> usize {
        self.options.max_batch_size.get() as usize
    }

    /// Whether a request of a class may be batched. A real-time request needs a deadline that says
    /// how long it can wait, unless the options say that all wait.
    pub(crate) fn gathers(&self, class: Class, has_deadline: bool) -> bool {
        self.options.gathers && (class == Class::BestEffort || self.options.real_time || has_deadline)
    }

    /// All sizes, with the number of rows set to 0: requests with the same shape may share a batch.
    pub(crate) fn shape(&self, binding: &Binding) -> Box<[i64]> {
        self.with_rows(binding, 0).into()
    }

    /// The sizes of an invocation, with the number of rows set to `rows`.
    pub(crate) fn with_rows(&self, binding: &Binding, rows: u64) -> Vec<i64> {
        let mut symbols = binding.symbols.clone();
        symbols[self.symbol.0 as usize] = rows as i64;
        symbols
    }

    /// The options in the form that [`atoll_core::batching`] uses.
    pub(crate) fn spec(&self, max_bytes: u64) -> BatchSpec {
        let BatchingOptions { max_batch_size, preferred, max_queue_delay, .. } = &self.options;
        BatchSpec {
            max_rows: max_batch_size.get(),
            max_bytes,
            preferred: preferred.clone(),
            max_delay_ns: max_queue_delay.map(crate::clock::saturating_nanos),
            real_time_waits: self.options.real_time,
        }
    }
}

impl Rows {
    /// The number of contiguous pieces that the rows of one request have in a batch's tensor of
    /// this shape.
    pub(crate) fn pieces(self, shape: &[i64]) -> usize {
        shape[..self.axis].iter().map(|&size| usize::try_from(size).unwrap_or(0)).product()
    }
}

/// Concatenates tensors along the dimension of the rows. Each tensor consists of `pieces` pieces of
/// equal size.
pub(crate) fn interleave(tensors: &[&[u8]], pieces: usize) -> Vec<u8> {
    let mut whole = Vec::with_capacity(tensors.iter().map(|tensor| tensor.len()).sum());
    for piece in 0..pieces {
        for tensor in tensors {
            let bytes = tensor.len() / pieces;
            whole.extend_from_slice(&tensor[piece * bytes..(piece + 1) * bytes]);
        }
    }
    whole
}

/// Extracts the rows of one request from a batch's tensor: `bytes` bytes at offset `first` of each
/// piece.
pub(crate) fn extract(whole: &[u8], pieces: usize, first: usize, bytes: usize) -> Vec<u8> {
    let stride = whole.len() / pieces.max(1);
    (0..pieces).flat_map(|piece| &whole[piece * stride + first..][..bytes]).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_kgraph::{
        BatchAxis, BufferId, BufferSpec, DType, Expr, InputElement, NodeId, ReadBack, Scalar, SessionSymbol, SymbolSpec,
    };
    use std::num::NonZeroU32;

    /// A graph with an input of `n` rows, at most `most`.
    fn graph(most: i64) -> KernelGraph {
        let input = BufferSpec {
            name: "x".into(),
            kind: BufferKind::Input,
            dtype: DType::F32,
            shape: vec![Expr::Const(3), Expr::from(SymbolId(0))],
            weights_offset: None,
        };
        KernelGraph {
            symbols: vec![SymbolSpec::new("n", 1, most)],
            buffers: vec![input],
            batch: Some(BatchAxis { symbol: SymbolId(0), axes: vec![Some(1)], proof: "test".into() }),
            ..KernelGraph::default()
        }
    }

    fn options(rows: u32, preferred: &[u32]) -> BatchingOptions {
        let rows = NonZeroU32::new(rows).expect("not zero");
        BatchingOptions { preferred: preferred.to_vec(), ..BatchingOptions::up_to(rows) }
    }

    #[test]
    fn options_are_checked_against_the_graph_and_the_limits() {
        let many = i64::from(ROWS_MAX) + 1;
        let preferred = |count: usize| vec![1; count];
        for (most, rows, preferred, expected) in [
            (8, 8, vec![1, 8], ""),
            (8, 9, vec![], "it was compiled for at most 8 rows"),
            (8, 8, vec![0], "the preferred batch size 0 is not between 1 and max_batch_size, which is 8"),
            (8, 7, vec![8], "the preferred batch size 8 is not between 1 and max_batch_size, which is 7"),
            (8, 8, preferred(PREFERRED_MAX), ""),
            (8, 8, preferred(PREFERRED_MAX + 1), "33 preferred batch sizes are given, at most 32 are possible"),
            (many, ROWS_MAX, vec![], ""),
            (many, ROWS_MAX + 1, vec![], "max_batch_size is 65537, but at most 65536 is possible"),
        ] {
            let found = Batching::new(&graph(most), options(rows, &preferred)).err().unwrap_or_default();
            let is_expected = if expected.is_empty() { found.is_empty() } else { found.contains(expected) };
            assert!(is_expected, "{rows} of {most}: expected `{expected}`, found `{found}`");
        }
    }

    #[test]
    fn requests_of_some_graphs_cannot_be_gathered() {
        let value = Scalar { buffer: BufferId(0), offset: 0, dtype: DType::I32 };
        let read_back = ReadBack { symbol: SymbolId(0), after: NodeId(0), value, most: None };
        let own = SessionSymbol { symbol: SymbolId(0), first: 1, next: Expr::Const(1) };
        let element = InputElement { symbol: SymbolId(0), input: 0, index: 0 };
        let refused = |change: &dyn Fn(&mut KernelGraph)| {
            let mut graph = graph(8);
            change(&mut graph);
            Batching::new(&graph, options(8, &[])).err().unwrap_or_default()
        };
        assert_eq!(refused(&|_| ()), "");
        assert!(refused(&|graph| graph.batch = None).contains("its rows are not proven independent"));
        for (found, why) in [
            (refused(&|graph| graph.session.symbols.push(own.clone())), "it keeps state between invocations"),
            (refused(&|graph| graph.read_backs.push(read_back.clone())), "it computes sizes at run time"),
            (refused(&|graph| graph.elements.push(element)), "some of its sizes are elements of an input"),
        ] {
            assert!(found.ends_with(&format!("requests cannot be gathered: {why}")), "{found}");
        }
    }

    #[test]
    fn a_request_has_at_most_the_rows_of_a_batch_and_real_time_ones_need_a_deadline() {
        let new = |options| Batching::new(&graph(8), options).expect("it fits");
        let batching = new(options(4, &[]));
        assert_eq!((batching.check(&[4]), batching.check(&[0]), batching.inputs[0].axis), (Ok(()), Ok(()), 1));
        let error = batching.check(&[5]).expect_err("too many").to_string();
        assert!(error.contains("inference request batch-size must be <= 4, but it is 5"), "{error}");
        let gathers = |gathers, real_time| {
            let batching = new(BatchingOptions { gathers, real_time, ..options(4, &[]) });
            let of = |class, has_deadline| batching.gathers(class, has_deadline);
            [of(Class::RealTime, false), of(Class::RealTime, true), of(Class::BestEffort, false)]
        };
        assert_eq!([gathers(true, true), gathers(true, false)], [[true, true, true], [false, true, true]]);
        assert_eq!([gathers(false, true), gathers(false, false)], [[false; 3]; 2]);
    }

    #[test]
    fn rows_in_an_inner_dimension_are_interleaved_and_found_again() {
        // Two requests of shape [2, 1, 3] and [2, 2, 3], with rows in dimension 1.
        let (a, b) = (b"abcdef".as_slice(), b"ABCDEFGHIJKL".as_slice());
        let whole = interleave(&[a, b], 2);
        assert_eq!(whole, b"abcABCDEFdefGHIJKL");
        assert_eq!(extract(&whole, 2, 0, 3), a);
        assert_eq!(extract(&whole, 2, 3, 6), b);
        let rows = Rows { axis: 1 };
        assert_eq!((rows.pieces(&[2, 3, 3]), Rows { axis: 0 }.pieces(&[9, 9])), (2, 1));
    }
}
