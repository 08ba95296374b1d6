//! Samples by tenant, function and class.
//!
//! The series of a function exist while it is loaded, beginning with zeros. When it is unloaded,
//! its usage moves to the tenant's series without a function, so that the sum over a tenant's
//! series never falls.

use super::metric::DeviceSnapshot;
use super::recorder::class_label;
use super::text::Samples;
use crate::limits::USAGE_FUNCTIONS_MAX;
use atoll_engine::{Class, Tenant, Usage, UsageRow};
use std::collections::{BTreeMap, BTreeSet};

/// The function label that sums up all functions without series of their own.
const OTHERS: &str = "(others)";

/// Limits the number of functions with rows of their own; each tenant's other functions share one
/// row. Functions are chosen by name, not by use, because a changing selection would leave gaps in
/// every series.
pub(super) fn bounded(rows: Vec<UsageRow>) -> Vec<UsageRow> {
    let functions: BTreeSet<(Tenant, String)> =
        rows.iter().filter_map(|row| Some((row.tenant.clone(), row.function.clone()?))).collect();
    let Some(first_without) = functions.into_iter().nth(USAGE_FUNCTIONS_MAX) else { return rows };
    let mut bounded = Vec::with_capacity(rows.len());
    let mut others: BTreeMap<(Tenant, Class), (Usage, bool)> = BTreeMap::new();
    for row in rows {
        match &row.function {
            Some(function) if (&row.tenant, function) >= (&first_without.0, &first_without.1) => {
                let (usage, is_billed_by_cpu) = others.entry((row.tenant, row.class)).or_default();
                *usage += &row.usage;
                // The same for all rows of a tenant.
                *is_billed_by_cpu = row.is_billed_by_cpu;
            }
            _ => bounded.push(row),
        }
    }
    bounded.extend(others.into_iter().map(|((tenant, class), (usage, is_billed_by_cpu))| UsageRow {
        tenant,
        function: Some(OTHERS.into()),
        class,
        usage,
        is_billed_by_cpu,
    }));
    bounded
}

/// Writes one sample per row.
pub(super) fn per_row(snapshot: &DeviceSnapshot<'_>, out: &mut Samples<'_>, value: impl Fn(&Usage) -> f64) {
    for row in &snapshot.usage {
        let [tenant, function, class] = labels(row);
        out.number(&[tenant, function, class], value(&row.usage));
    }
}

/// Writes one sample per row and list entry, for example per outcome of invocations.
pub(super) fn per_row_and<T: Copy>(
    snapshot: &DeviceSnapshot<'_>,
    out: &mut Samples<'_>,
    (name, entries): (&str, &[(T, &str)]),
    value: impl Fn(&Usage, T) -> f64,
) {
    for row in &snapshot.usage {
        let [tenant, function, class] = labels(row);
        for (entry, label) in entries {
            out.number(&[tenant, function, class, (name, label)], value(&row.usage, *entry));
        }
    }
}

/// Writes the billed time of each row, with a label for the count that is billed.
pub(super) fn billed_seconds(snapshot: &DeviceSnapshot<'_>, out: &mut Samples<'_>) {
    for row in &snapshot.usage {
        let [tenant, function, class] = labels(row);
        let by = if row.is_billed_by_cpu { "kernel" } else { "report" };
        out.number(&[tenant, function, class, ("billed_by", by)], snapshot.seconds(row.billed_ns()));
    }
}

/// Writes the price of each row's billed time. Nothing if no device has a price.
pub(super) fn price_units(snapshot: &DeviceSnapshot<'_>, out: &mut Samples<'_>) {
    let Some(price) = snapshot.price_per_s else { return };
    for row in &snapshot.usage {
        out.number(&labels(row), price * snapshot.seconds(row.billed_ns()));
    }
}

/// Prometheus treats an empty label as missing.
fn labels(row: &UsageRow) -> [(&'static str, &str); 3] {
    [
        ("tenant", row.tenant.as_str()),
        ("function", row.function.as_deref().unwrap_or_default()),
        ("class", class_label(row.class)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_beyond_the_bound_are_one_of_their_tenant_and_nothing_is_lost() {
        let row = |index: usize, class| UsageRow {
            tenant: if index.is_multiple_of(2) { "a" } else { "b" }.parse().unwrap(),
            function: (index > 1).then(|| format!("f{index:04}")),
            class,
            usage: Usage { launches: index as u64, ..Usage::default() },
            is_billed_by_cpu: index.is_multiple_of(2),
        };
        let count = USAGE_FUNCTIONS_MAX + 7;
        let rows =
            (0..count).flat_map(|index| [Class::RealTime, Class::BestEffort].map(|class| row(index, class))).collect();
        let bounded = bounded(rows);
        let named: BTreeSet<_> =
            bounded.iter().filter_map(|row| row.function.clone().filter(|name| name != OTHERS)).collect();
        assert_eq!(named.len(), USAGE_FUNCTIONS_MAX);
        assert_eq!(bounded.iter().map(|row| row.usage.launches).sum::<u64>(), (0..count as u64).sum::<u64>() * 2);
        assert_eq!(
            bounded.iter().filter(|row| row.function.as_deref() == Some(OTHERS)).count(),
            2,
            "those of `b`, by class"
        );
        assert_eq!(bounded.iter().filter(|row| row.function.is_none()).count(), 4);
        assert!(bounded.iter().all(|row| row.is_billed_by_cpu == (row.tenant.as_str() == "a")));
    }
}
