//! Instructions that the lanes of a warp execute together.

use super::Decoder;
use crate::matrix::Product;
use crate::op::{Addr, Op, Src};
use crate::warp_op::{Redux, Shuffle, Vote, WarpKind, WarpOp};
use atoll_ptx::analysis::StatementId;
use atoll_ptx::types::TypeClass;
use atoll_ptx::{Instruction, Operand, ScalarType};

impl Decoder<'_> {
    pub(super) fn lanes(&self, id: StatementId, i: &Instruction) -> Result<Option<Op>, String> {
        let (kind, sources, masked) = match i.opcode.as_str() {
            "activemask" => {
                let to = i.operands.first().ok_or("it needs an operand")?;
                return Ok(Some(Op::ActiveMask(self.destination(id, to)?)));
            }
            "bar" | "barrier" if i.has("warp") => {
                let mask = i.operands.first().ok_or("it needs a mask")?;
                let mask = Some(self.source(id, mask, ScalarType::B32)?);
                return Ok(Some(Op::Warp(Box::new(WarpOp {
                    kind: WarpKind::Barrier,
                    mask,
                    addr: None,
                    src: [].into(),
                    dst: [].into(),
                }))));
            }
            "shfl" | "vote" | "match" | "redux" | "elect" => {
                if !i.has("sync") {
                    return Err("without .sync it is not supported".into());
                }
                let (kind, sources) = masked(i)?;
                (kind, sources, true)
            }
            "mma" => (WarpKind::Product(Product::mma(i)?), 3, false),
            "wmma" | "ldmatrix" | "stmatrix" | "movmatrix" => return self.fragments(id, i).map(Some),
            _ => return Ok(None),
        };
        let (to, rest) = i.operands.split_first().ok_or("it needs operands")?;
        if rest.len() != sources + usize::from(masked) {
            return Err(format!("{} operands are not supported", i.operands.len()));
        }
        let mask = if masked { Some(self.source(id, &rest[sources], ScalarType::B32)?) } else { None };
        let mut src = Vec::new();
        for operand in &rest[..sources] {
            self.flat_sources(id, operand, width_of_literals(i), &mut src)?;
        }
        if let WarpKind::Product(product) = &kind {
            product.check(src.len())?;
        }
        Ok(Some(Op::Warp(Box::new(WarpOp {
            kind,
            mask,
            addr: None,
            src: src.into(),
            dst: self.flat_destinations(id, to)?,
        }))))
    }

    fn flat_sources(
        &self,
        id: StatementId,
        operand: &Operand,
        literal: ScalarType,
        out: &mut Vec<Src>,
    ) -> Result<(), String> {
        match operand {
            Operand::Vector(parts) => parts.iter().try_for_each(|part| self.flat_sources(id, part, literal, out)),
            one => {
                out.push(self.source(id, one, literal)?);
                Ok(())
            }
        }
    }

    fn flat_destinations(&self, id: StatementId, operand: &Operand) -> Result<Box<[Option<crate::op::Dst>]>, String> {
        match operand {
            Operand::Vector(parts) => parts.iter().map(|part| self.destination(id, part)).collect(),
            Operand::Pair(first, second) => [first, second].iter().map(|part| self.destination(id, part)).collect(),
            one => Ok([self.destination(id, one)?].into()),
        }
    }

    /// `ldmatrix`, `stmatrix`, `movmatrix`, and the `wmma` instructions.
    fn fragments(&self, id: StatementId, i: &Instruction) -> Result<Op, String> {
        let none = Box::new([]);
        let op = |kind, addr: Option<Addr>, src: Vec<Src>, dst| {
            Op::Warp(Box::new(WarpOp { kind, mask: None, addr, src: src.into(), dst }))
        };
        let (mut src, literal) = (Vec::new(), width_of_literals(i));
        match (i.opcode.as_str(), i.operands.as_slice()) {
            ("ldmatrix" | "stmatrix", [first, second]) => {
                if !i.has("m8n8") || i.ty() != Some(ScalarType::B16) {
                    return Err("only m8n8 of b16 is supported".into());
                }
                let transposed = i.has("trans");
                if i.opcode == "ldmatrix" {
                    let dst = self.flat_destinations(id, first)?;
                    return Ok(op(WarpKind::LoadMatrices { transposed }, Some(self.address(id, i, second)?), src, dst));
                }
                self.flat_sources(id, second, literal, &mut src)?;
                Ok(op(WarpKind::StoreMatrices { transposed }, Some(self.address(id, i, first)?), src, none))
            }
            ("movmatrix", [to, from]) => {
                self.flat_sources(id, from, literal, &mut src)?;
                Ok(op(WarpKind::Transpose, None, src, self.flat_destinations(id, to)?))
            }
            ("wmma", [to, from, rest @ ..]) if i.has("load") => {
                let fragment = crate::matrix::Fragment::of(i)?;
                rest.iter().try_for_each(|stride| self.flat_sources(id, stride, literal, &mut src))?;
                let dst = self.flat_destinations(id, to)?;
                fragment.check(dst.len())?;
                Ok(op(WarpKind::LoadFragment(fragment), Some(self.address(id, i, from)?), src, dst))
            }
            ("wmma", [to, from, rest @ ..]) if i.has("store") => {
                let fragment = crate::matrix::Fragment::of(i)?;
                self.flat_sources(id, from, literal, &mut src)?;
                fragment.check(src.len())?;
                rest.iter().try_for_each(|stride| self.flat_sources(id, stride, literal, &mut src))?;
                Ok(op(WarpKind::StoreFragment(fragment), Some(self.address(id, i, to)?), src, none))
            }
            ("wmma", [to, sources @ ..]) if i.has("mma") && sources.len() == 3 => {
                let product = Product::wmma(i)?;
                sources.iter().try_for_each(|s| self.flat_sources(id, s, literal, &mut src))?;
                product.check(src.len())?;
                Ok(op(WarpKind::Product(product), None, src, self.flat_destinations(id, to)?))
            }
            _ => Err("this form is not supported".into()),
        }
    }
}

/// The type of literals among the sources: fragments have 32-bit registers, except those of f64.
fn width_of_literals(i: &Instruction) -> ScalarType {
    if i.ty().is_some_and(|t| t.bits() == 64) { ScalarType::B64 } else { ScalarType::B32 }
}

/// The kind of an instruction with a member mask, and the number of sources before the mask.
fn masked(i: &Instruction) -> Result<(WarpKind, usize), String> {
    let ty = i.ty();
    let one_of =
        |names: &[&str]| names.iter().position(|n| i.has(n)).ok_or_else(|| "its mode is not supported".to_owned());
    Ok(match i.opcode.as_str() {
        "shfl" => {
            let shuffles = [Shuffle::Up, Shuffle::Down, Shuffle::Butterfly, Shuffle::Index];
            (WarpKind::Shuffle(shuffles[one_of(&["up", "down", "bfly", "idx"])?]), 3)
        }
        "vote" => {
            let votes = [Vote::All, Vote::Any, Vote::Uniform, Vote::Ballot];
            (WarpKind::Vote(votes[one_of(&["all", "any", "uni", "ballot"])?]), 1)
        }
        "match" => (WarpKind::Match { all: one_of(&["all", "any"])? == 0 }, 1),
        "redux" => {
            let signed = ty.is_some_and(|t| t.class() == TypeClass::Signed);
            if ty.is_none_or(|t| t.class() == TypeClass::Float) {
                return Err("its type is not supported".into());
            }
            let kinds = [Redux::Add, Redux::Min, Redux::Max, Redux::And, Redux::Or, Redux::Xor];
            (WarpKind::Redux(kinds[one_of(&["add", "min", "max", "and", "or", "xor"])?], signed), 1)
        }
        _ => (WarpKind::Elect, 0),
    })
}
