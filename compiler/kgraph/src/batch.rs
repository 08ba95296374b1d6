//! The batch axis: the dimension of each buffer that counts independent rows.

use crate::expr::SymbolId;
use serde::{Deserialize, Serialize};

/// A symbol that counts independent rows, and the dimension of the rows in each buffer.
///
/// Rows of several requests may be concatenated: row `i` of each output depends only on row `i` of
/// each input. Only a frontend analysis that has proven this writes a batch axis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchAxis {
    /// The number of rows. In every input and output, exactly one dimension is this symbol, and no
    /// other dimension depends on it.
    pub symbol: SymbolId,
    /// The row dimension of each buffer; `None` for a buffer without rows, or about which the
    /// analysis states nothing. Inputs and outputs have one, constants have none.
    pub axes: Vec<Option<u32>>,
    /// Name of the analysis that proved the rows independent.
    pub proof: String,
}
