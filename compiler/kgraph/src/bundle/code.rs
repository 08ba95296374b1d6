//! Encoding of code that was recompiled for a bundle. Caches store it, and processes exchange it.

use super::contents::TargetContents;
use super::json;
use crate::limits::CODE_BYTES_MAX;
use crate::target::TargetImage;
use serde::{Deserialize, Serialize};

/// First bytes of encoded code, with the version of the encoding.
const MAGIC: &[u8; 8] = b"ATLCODE1";

/// The head of one target. The heads of all targets come first, then the code and PTX of each
/// target.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    image: TargetImage,
    code_bytes: u64,
    ptx_bytes: Option<u64>,
}

/// Encodes the code of targets, without sources.
///
/// # Errors
/// The facts are larger than [`crate::limits::JSON_BYTES_MAX`], or all parts together are larger
/// than [`CODE_BYTES_MAX`].
pub fn encode_code(targets: &[TargetContents]) -> Result<Vec<u8>, String> {
    let head = |target: &TargetContents| Head {
        image: target.image.clone(),
        code_bytes: target.code.len() as u64,
        ptx_bytes: target.ptx.as_ref().map(|ptx| ptx.len() as u64),
    };
    let heads = json::print(&targets.iter().map(head).collect::<Vec<Head>>())?;
    let mut bytes = MAGIC.to_vec();
    bytes.extend((heads.len() as u64).to_le_bytes());
    bytes.extend(heads);
    for target in targets {
        bytes.extend(&target.code);
        bytes.extend(target.ptx.as_deref().unwrap_or_default().as_bytes());
    }
    if bytes.len() as u64 > CODE_BYTES_MAX {
        return Err(format!("the code has {} bytes, at most {CODE_BYTES_MAX} are allowed", bytes.len()));
    }
    Ok(bytes)
}

/// Decodes code from [`encode_code`]. [`crate::Bundle::with_code`] checks the facts.
///
/// # Errors
/// The bytes are not encoded code; the text says why.
pub fn decode_code(bytes: &[u8]) -> Result<Vec<TargetContents>, String> {
    let rest = bytes.strip_prefix(MAGIC).ok_or("it is not code of this version of Atoll")?;
    let (heads_bytes, mut rest) = rest.split_first_chunk().ok_or("it ends early")?;
    let mut take = |count: u64| -> Result<&[u8], String> {
        let (taken, left) =
            usize::try_from(count).ok().and_then(|count| rest.split_at_checked(count)).ok_or("it ends early")?;
        rest = left;
        Ok(taken)
    };
    let heads: Vec<Head> = json::parse(take(u64::from_le_bytes(*heads_bytes))?)?;
    let mut targets = Vec::with_capacity(heads.len());
    for Head { image, code_bytes, ptx_bytes } in heads {
        let code = take(code_bytes)?.to_vec();
        let ptx = ptx_bytes.map(&mut take).transpose()?;
        let ptx = ptx.map(|ptx| String::from_utf8(ptx.to_vec()).map_err(|error| error.to_string())).transpose()?;
        targets.push(TargetContents { image, code, ptx, source: None });
    }
    if rest.is_empty() { Ok(targets) } else { Err(format!("{} bytes follow its end", rest.len())) }
}
