//! The device memory of one invocation: its size, and the place of everything in it.
//!
//! An invocation has one allocation. It holds, in order: inputs, outputs, the arena of temporary
//! buffers, and the *control area*, which is zeroed when the invocation begins. The control area
//! holds the task's epoch word, one word per check, one evicted word per launch, and the progress
//! maps. Constants have their own allocations, because invocations share them.
//!
//! The layout is a pure function of graph, target and symbols, so an inspection prints the sizes
//! that a run uses. Every range of a launch argument, copy or fill is checked against the size of
//! its buffer. A layout exists only if all of them fit, so no planned access exceeds the
//! allocation.

use crate::expr::{EvalError, Expr};
use crate::graph::{
    BUFFER_ALIGN, BufferId, BufferKind, BufferSpec, KernelGraph, Node, NodeKind, ReadBack, TempPlacement,
};
use crate::segment::{Scalar, Segment};
use crate::target::{Argument, LaunchSpec, LaunchVariant, SymbolRange, TargetImage};

/// Alignment of a progress map in bytes, so that it can be read in words.
const PROGRESS_ALIGN: u64 = 16;

/// Bytes reserved for the epoch word. It has its own cache line, because every block of every
/// launch reads it while other blocks write progress.
const EPOCH_LINE_BYTES: u64 = BUFFER_ALIGN;

/// Bytes of the word in which a kernel reports a violated check.
const CHECK_WORD_BYTES: u64 = 4;

/// A range of bytes within an allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Place {
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// The memory of one launch in the control area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchLayout {
    /// Blocks in x, y, z; all at least 1.
    pub grid: [u32; 3],
    /// Offset of its evicted word.
    pub evicted_word: u64,
    /// Its progress map; empty for a kernel that does not record progress.
    pub progress: Place,
    /// The selected variant of the node's launch, see [`LaunchSpec::choose`].
    pub variant: Option<usize>,
}

/// The memory of one invocation with known symbols.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvocationLayout {
    /// Size of the allocation, a multiple of [`BUFFER_ALIGN`].
    pub bytes: u64,
    /// The place of every buffer: in the allocation; for a constant, in the weights; for a state
    /// buffer, in the session's memory.
    pub buffers: Vec<Place>,
    /// Size of the session's memory for state buffers, which is not part of the allocation.
    pub state_bytes: u64,
    /// The arena of temporary buffers.
    pub arena: Place,
    /// The control area, which is zeroed when an invocation begins.
    pub control: Place,
    /// Offset of the epoch word.
    pub epoch_word: u64,
    /// The words of the graph's checks in order, four bytes each.
    pub checks: Place,
    /// The launch of each node; `None` for a node without kernel or with an empty grid.
    pub launches: Vec<Option<LaunchLayout>>,
}

/// Why a graph has no layout for these symbols.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// A size cannot be computed.
    #[error("{place}: {source}")]
    Size {
        /// The buffer or node.
        place: String,
        /// The reason.
        source: EvalError,
    },
    /// A size is negative or too large.
    #[error("{place}: {value} is not a valid {what}")]
    Range {
        /// The buffer or node.
        place: String,
        /// The kind of value: size, offset, …
        what: &'static str,
        /// The value.
        value: i64,
    },
    /// A range exceeds the memory that contains it.
    #[error("{place}: bytes {offset} to {end} exceed its {limit} bytes")]
    Outside {
        /// The buffer or node.
        place: String,
        /// Offset of the first byte.
        offset: u64,
        /// Offset one past the last byte.
        end: u64,
        /// Size of the containing memory.
        limit: u64,
    },
    /// More blocks than the progress map has room for.
    #[error("{place}: {blocks} blocks, but its progress map has room for {limit}")]
    Blocks {
        /// The node.
        place: String,
        /// Number of blocks.
        blocks: u64,
        /// Blocks that the progress map has room for.
        limit: u64,
    },
    /// Two ranges overlap.
    #[error("{place}: overlapping ranges in {other}")]
    Overlap {
        /// The buffer or node.
        place: String,
        /// The buffer that it overlaps, or in which its ranges overlap.
        other: String,
    },
    /// Size or offset of a fill is not a multiple of the pattern.
    #[error("{place}: a fill of {bytes} bytes, or its offset, is not a multiple of the pattern's {unit} bytes")]
    Pattern {
        /// The node.
        place: String,
        /// Bytes to fill.
        bytes: u64,
        /// Bytes of the pattern.
        unit: u64,
    },
    /// The sum of all sizes does not fit 64 bits.
    #[error("the invocation's memory overflows 64 bits")]
    Overflow,
}

/// Bytes of device memory that one invocation takes, without constants.
pub fn invocation_bytes(graph: &KernelGraph, target: &TargetImage, symbols: &[i64]) -> Result<u64, LayoutError> {
    InvocationLayout::new(graph, target, symbols).map(|layout| layout.bytes)
}

impl InvocationLayout {
    /// Lays out an invocation of a valid graph on a valid target; `symbols[id]` is the value of
    /// each symbol.
    pub fn new(graph: &KernelGraph, target: &TargetImage, symbols: &[i64]) -> Result<InvocationLayout, LayoutError> {
        let mut cursor = Cursor::default();
        let mut buffers = vec![Place::default(); graph.buffers.len()];
        for kind in [BufferKind::Input, BufferKind::Output] {
            for (id, buffer) in graph.buffers_of(kind) {
                buffers[id.0 as usize] = cursor.take(buffer_bytes(buffer, symbols)?, BUFFER_ALIGN)?;
            }
        }
        let arena_bytes =
            graph.plan.arena_bytes.as_ref().map_or(Ok(0), |bytes| size("memory plan", "size", bytes, symbols))?;
        let arena = cursor.take(arena_bytes, BUFFER_ALIGN)?;
        place_all(graph, symbols, &graph.plan.temps, arena, &mut buffers)?;
        let state_bytes =
            graph.plan.state_bytes.as_ref().map_or(Ok(0), |bytes| size("memory plan", "size", bytes, symbols))?;
        place_all(graph, symbols, &graph.plan.states, Place { offset: 0, bytes: state_bytes }, &mut buffers)?;
        check_states(graph, &buffers)?;
        for (id, buffer) in graph.buffers_of(BufferKind::Const) {
            buffers[id.0 as usize] =
                Place { offset: buffer.weights_offset.unwrap_or(0), bytes: buffer_bytes(buffer, symbols)? };
        }
        check_transfers(graph, symbols, &buffers)?;
        check_read_backs(graph, |id| Ok(buffers[id.0 as usize].bytes))?;
        let control_start = cursor.take(EPOCH_LINE_BYTES, BUFFER_ALIGN)?.offset;
        let checks = cursor.take(CHECK_WORD_BYTES * graph.checks.len() as u64, CHECK_WORD_BYTES)?;
        let launches = place_launches(graph, target, symbols, &buffers, &mut cursor)?;
        let bytes = cursor.take(0, BUFFER_ALIGN)?.offset;
        let control = Place { offset: control_start, bytes: bytes - control_start };
        Ok(InvocationLayout {
            bytes,
            buffers,
            state_bytes,
            arena,
            control,
            epoch_word: control_start,
            checks,
            launches,
        })
    }

    /// The layout of the same memory for other values of the read-back symbols. Buffers keep their
    /// places; launches use the new values.
    ///
    /// # Errors
    /// A size cannot be computed, or a buffer, launch argument or progress map exceeds its place.
    pub fn with_sizes(
        &self,
        graph: &KernelGraph,
        target: &TargetImage,
        symbols: &[i64],
    ) -> Result<InvocationLayout, LayoutError> {
        for (buffer, place) in graph.buffers.iter().zip(&self.buffers) {
            let bytes = buffer_bytes(buffer, symbols)?;
            within(&buffer.name, Place { offset: 0, bytes }, place.bytes)?;
        }
        check_transfers(graph, symbols, &self.buffers)?;
        check_read_backs(graph, |id| buffer_bytes(&graph.buffers[id.0 as usize], symbols))?;
        let mut launches = Vec::with_capacity(self.launches.len());
        for ((node, spec), before) in graph.nodes.iter().zip(&target.launches).zip(&self.launches) {
            let launch = spec
                .as_ref()
                .map(|spec| chosen_launch(&node.name, spec, symbols, &self.buffers))
                .transpose()?
                .flatten();
            launches.push(launch.map(|launch| fit_launch(node, spec.as_ref(), target, launch, *before)).transpose()?);
        }
        Ok(InvocationLayout { launches, ..self.clone() })
    }

    /// Offset of the word of check `check`.
    pub fn check_word(&self, check: u32) -> u64 {
        self.checks.offset + CHECK_WORD_BYTES * u64::from(check)
    }

    /// The smallest range that contains the progress maps of these nodes and of no other node.
    /// `None` if these nodes have none.
    pub fn progress_of(&self, nodes: std::ops::Range<u32>) -> Option<Place> {
        // Maps are laid out in the order of nodes.
        let maps = self.launches.get(nodes.start as usize..nodes.end as usize)?.iter().flatten();
        let mut maps = maps.map(|launch| launch.progress).filter(|map| map.bytes > 0);
        let first = maps.next()?;
        let last = maps.next_back().unwrap_or(first);
        Some(Place { offset: first.offset, bytes: last.offset + last.bytes - first.offset })
    }

    /// The place of a buffer.
    pub fn buffer(&self, id: BufferId) -> Place {
        self.buffers[id.0 as usize]
    }
}

/// Allocates ascending places.
#[derive(Default)]
struct Cursor(u64);

impl Cursor {
    fn take(&mut self, bytes: u64, align: u64) -> Result<Place, LayoutError> {
        let offset = self.0.checked_next_multiple_of(align).ok_or(LayoutError::Overflow)?;
        self.0 = offset.checked_add(bytes).ok_or(LayoutError::Overflow)?;
        Ok(Place { offset, bytes })
    }
}

fn size(place: &str, what: &'static str, expr: &Expr, symbols: &[i64]) -> Result<u64, LayoutError> {
    let value = expr.eval(symbols).map_err(|source| LayoutError::Size { place: place.into(), source })?;
    u64::try_from(value).map_err(|_| LayoutError::Range { place: place.into(), what, value })
}

/// Checks each dimension, because two negative dimensions have a positive product.
fn buffer_bytes(buffer: &BufferSpec, symbols: &[i64]) -> Result<u64, LayoutError> {
    for dimension in &buffer.shape {
        size(&buffer.name, "dimension", dimension, symbols)?;
    }
    size(&buffer.name, "size", &buffer.bytes(), symbols)
}

fn within(place: &str, inner: Place, limit: u64) -> Result<(), LayoutError> {
    let end = inner.offset.checked_add(inner.bytes).ok_or(LayoutError::Overflow)?;
    if end > limit {
        return Err(LayoutError::Outside { place: place.into(), offset: inner.offset, end, limit });
    }
    Ok(())
}

/// Places buffers in an arena.
fn place_all(
    graph: &KernelGraph,
    symbols: &[i64],
    places: &[TempPlacement],
    arena: Place,
    buffers: &mut [Place],
) -> Result<(), LayoutError> {
    for temp in places {
        let buffer = &graph.buffers[temp.buffer.0 as usize];
        let inner = Place {
            offset: size(&buffer.name, "offset", &temp.offset, symbols)?,
            bytes: buffer_bytes(buffer, symbols)?,
        };
        within(&buffer.name, inner, arena.bytes)?;
        buffers[temp.buffer.0 as usize] = Place { offset: arena.offset + inner.offset, bytes: inner.bytes };
    }
    Ok(())
}

/// State buffers all live at the same time, so they must not overlap.
fn check_states(graph: &KernelGraph, buffers: &[Place]) -> Result<(), LayoutError> {
    let mut states: Vec<(Place, &str)> =
        graph.buffers_of(BufferKind::State).map(|(id, spec)| (buffers[id.0 as usize], spec.name.as_str())).collect();
    states.retain(|(place, _)| place.bytes > 0);
    states.sort_by_key(|(place, _)| place.offset);
    match states.windows(2).find(|pair| overlap(pair[0].0, pair[1].0)) {
        Some(pair) => Err(LayoutError::Overlap { place: pair[1].1.into(), other: pair[0].1.into() }),
        None => Ok(()),
    }
}

fn overlap(a: Place, b: Place) -> bool {
    a.bytes > 0
        && b.bytes > 0
        && a.offset < b.offset.saturating_add(b.bytes)
        && b.offset < a.offset.saturating_add(a.bytes)
}

fn check_transfers(graph: &KernelGraph, symbols: &[i64], buffers: &[Place]) -> Result<(), LayoutError> {
    for node in &graph.nodes {
        let range = |offset: &Expr, bytes: &Expr, id: &BufferId| {
            let range = Place {
                offset: size(&node.name, "offset", offset, symbols)?,
                bytes: size(&node.name, "size", bytes, symbols)?,
            };
            within(&node.name, range, buffers[id.0 as usize].bytes).map(|()| range)
        };
        match &node.kind {
            NodeKind::Kernel => {}
            NodeKind::Copy { from, from_offset, to, to_offset, bytes } => {
                let (source, destination) = (range(from_offset, bytes, from)?, range(to_offset, bytes, to)?);
                if from == to && overlap(source, destination) {
                    let name = &graph.buffers[to.0 as usize].name;
                    return Err(LayoutError::Overlap { place: node.name.clone(), other: name.clone() });
                }
            }
            NodeKind::Fill { to, offset, bytes, pattern } => {
                let range = range(offset, bytes, to)?;
                let unit = pattern.len() as u64;
                if !range.bytes.is_multiple_of(unit) || !range.offset.is_multiple_of(unit) {
                    return Err(LayoutError::Pattern { place: node.name.clone(), bytes: range.bytes, unit });
                }
            }
        }
    }
    Ok(())
}

/// Checks that read-back values and scalars of segments lie in their buffers for these symbols.
/// Validation checks only the smallest symbols, and a buffer may shrink with a larger symbol.
fn check_read_backs(
    graph: &KernelGraph,
    bytes_of: impl Fn(BufferId) -> Result<u64, LayoutError>,
) -> Result<(), LayoutError> {
    let mut scalars: Vec<Scalar> = graph.read_backs.iter().map(|ReadBack { value, .. }| *value).collect();
    Segment::visit_scalars(&graph.segments, &mut |scalar| scalars.push(*scalar));
    for Scalar { buffer, offset, dtype } in &scalars {
        within(
            &graph.buffers[buffer.0 as usize].name,
            Place { offset: *offset, bytes: dtype.bytes() },
            bytes_of(*buffer)?,
        )?;
    }
    Ok(())
}

fn place_launches(
    graph: &KernelGraph,
    target: &TargetImage,
    symbols: &[i64],
    buffers: &[Place],
    cursor: &mut Cursor,
) -> Result<Vec<Option<LaunchLayout>>, LayoutError> {
    let mut launches = Vec::with_capacity(graph.nodes.len());
    for (node, spec) in graph.nodes.iter().zip(&target.launches) {
        let Some(spec) = spec else {
            launches.push(None);
            continue;
        };
        launches.push(chosen_launch(&node.name, spec, symbols, buffers)?);
    }
    // All words first, then the maps, so that the words, which are read together, are adjacent.
    for launch in launches.iter_mut().flatten() {
        launch.evicted_word = cursor.take(4, 4)?.offset;
    }
    for ((launch, spec), node) in launches.iter_mut().zip(&target.launches).zip(&graph.nodes) {
        if let (Some(launch), Some(spec)) = (launch, spec) {
            let bytes = progress_bytes(graph, target, node, spec, launch, symbols)?;
            launch.progress = if bytes == 0 { Place::default() } else { cursor.take(bytes, PROGRESS_ALIGN)? };
        }
    }
    Ok(launches)
}

/// The launch of a node for these symbols, without places; `None` if the grid is empty.
fn chosen_launch(
    name: &str,
    spec: &LaunchSpec,
    symbols: &[i64],
    buffers: &[Place],
) -> Result<Option<LaunchLayout>, LayoutError> {
    let (variant, chosen) = spec.choose(symbols);
    let grid = checked_grid(name, chosen, symbols, buffers)?;
    let launch = LaunchLayout { grid, evicted_word: 0, progress: Place::default(), variant };
    Ok((!grid.contains(&0)).then_some(launch))
}

fn block_count(grid: [u32; 3]) -> Result<u64, LayoutError> {
    grid.iter().try_fold(1_u64, |blocks, &d| blocks.checked_mul(d.into())).ok_or(LayoutError::Overflow)
}

/// Bytes of a launch's progress map. If values read back later may select another variant, the map
/// has room for the largest.
fn progress_bytes(
    graph: &KernelGraph,
    target: &TargetImage,
    node: &Node,
    spec: &LaunchSpec,
    launch: &LaunchLayout,
    symbols: &[i64],
) -> Result<u64, LayoutError> {
    let keeps = |launch: &LaunchSpec| target.kernels[launch.kernel.0 as usize].keeps_progress();
    let mut bytes = if keeps(spec.variant(launch.variant)) { block_count(launch.grid)? } else { 0 };
    for LaunchVariant { ranges, launch } in &spec.variants {
        let open = |range: &&SymbolRange| graph.read_back_of(range.symbol).is_some() || graph.session.has(range.symbol);
        if !keeps(launch) || !ranges.iter().any(|range| open(&range)) {
            continue;
        }
        let mut largest = symbols.to_vec();
        ranges.iter().filter(open).for_each(|range| {
            let symbol = &mut largest[range.symbol.0 as usize];
            *symbol = (*symbol).min(range.max);
        });
        bytes = bytes.max(block_count(grid_of(&node.name, launch, &largest)?)?);
    }
    let falls_back = !spec.variants.is_empty()
        && spec
            .variants
            .iter()
            .flat_map(|v| &v.ranges)
            .any(|range| graph.read_back_of(range.symbol).is_some() || graph.session.has(range.symbol));
    if falls_back && keeps(spec) {
        bytes = bytes.max(block_count(grid_of(&node.name, spec, symbols)?)?);
    }
    Ok(bytes)
}

/// The launch of a node for values that were read back. It uses the evicted word and the progress
/// map of the node's launch for the largest values.
fn fit_launch(
    node: &Node,
    spec: Option<&LaunchSpec>,
    target: &TargetImage,
    launch: LaunchLayout,
    before: Option<LaunchLayout>,
) -> Result<LaunchLayout, LayoutError> {
    let blocks = block_count(launch.grid)?;
    let exceeds = |limit| LayoutError::Blocks { place: node.name.clone(), blocks, limit };
    let before = before.ok_or_else(|| exceeds(0))?;
    let keeps =
        spec.is_some_and(|spec| target.kernels[spec.variant(launch.variant).kernel.0 as usize].keeps_progress());
    if keeps && blocks > before.progress.bytes {
        return Err(exceeds(before.progress.bytes));
    }
    Ok(LaunchLayout { evicted_word: before.evicted_word, progress: before.progress, ..launch })
}

/// The grid of a launch, after checking that its arguments point into their buffers.
fn checked_grid(name: &str, spec: &LaunchSpec, symbols: &[i64], buffers: &[Place]) -> Result<[u32; 3], LayoutError> {
    for argument in &spec.args {
        let address = |buffer: &BufferId, offset: &Expr| {
            let offset = size(name, "offset", offset, symbols)?;
            within(name, Place { offset, bytes: 0 }, buffers[buffer.0 as usize].bytes)
        };
        match argument {
            Argument::Buffer { buffer, offset } => address(buffer, offset)?,
            Argument::Bytes { relocations, .. } => {
                relocations.iter().try_for_each(|it| address(&it.buffer, &it.offset))?
            }
            Argument::Int { .. } | Argument::F32 { .. } | Argument::F64 { .. } | Argument::Check { .. } => {}
        }
    }
    grid_of(name, spec, symbols)
}

fn grid_of(name: &str, spec: &LaunchSpec, symbols: &[i64]) -> Result<[u32; 3], LayoutError> {
    let mut grid = [0; 3];
    for (blocks, expr) in grid.iter_mut().zip(&spec.grid) {
        let value = size(name, "number of blocks", expr, symbols)?;
        *blocks = u32::try_from(value).map_err(|_| LayoutError::Range {
            place: name.into(),
            what: "number of blocks",
            value: value as i64,
        })?;
    }
    Ok(grid)
}
