//! Special registers (ISA chapter 10).

/// Names without `%` and component; the families in [`NUMBERED`] are separate.
const SPECIAL_REGISTERS: &[&str] = &[
    "tid",
    "ntid",
    "laneid",
    "warpid",
    "nwarpid",
    "ctaid",
    "nctaid",
    "smid",
    "nsmid",
    "gridid",
    "is_explicit_cluster",
    "clusterid",
    "nclusterid",
    "cluster_ctaid",
    "cluster_nctaid",
    "cluster_ctarank",
    "cluster_nctarank",
    "lanemask_eq",
    "lanemask_le",
    "lanemask_lt",
    "lanemask_ge",
    "lanemask_gt",
    "clock",
    "clock_hi",
    "clock64",
    "globaltimer",
    "globaltimer_lo",
    "globaltimer_hi",
    "total_smem_size",
    "aggr_smem_size",
    "dynamic_smem_size",
    "current_graph_exec",
    "reserved_smem_offset_begin",
    "reserved_smem_offset_end",
    "reserved_smem_offset_cap",
];

/// Families of special registers: prefix, count, suffix.
const NUMBERED: &[(&str, u32, &str)] =
    &[("envreg", 32, ""), ("pm", 8, ""), ("pm", 8, "_64"), ("reserved_smem_offset_", 2, "")];

/// Whether a name is a special register, with or without component (`%tid.x`). Special registers
/// are read-only.
pub fn is_special_register(name: &str) -> bool {
    let Some(name) = name.strip_prefix('%') else { return false };
    let base = name.split('.').next().unwrap_or(name);
    let in_family = |&(prefix, count, suffix): &(&str, u32, &str)| {
        let number = base
            .strip_prefix(prefix)
            .and_then(|rest| rest.strip_suffix(suffix))
            .and_then(|digits| digits.parse::<u32>().ok());
        number.is_some_and(|number| number < count)
    };
    SPECIAL_REGISTERS.contains(&base) || NUMBERED.iter().any(in_family)
}

#[cfg(test)]
mod tests {
    use super::is_special_register;

    #[test]
    fn special_registers_and_others() {
        for name in ["%tid.x", "%tid", "%envreg31", "%pm7", "%pm0_64", "%clock64", "%reserved_smem_offset_1"] {
            assert!(is_special_register(name), "{name}");
        }
        for name in ["%r1", "tid.x", "%envreg32", "%pm8", "%pm", "%tidy"] {
            assert!(!is_special_register(name), "{name}");
        }
    }
}
