//! `atoll usage`

use super::functions::ls::class_name;
use crate::control::{Classify, ControlArgs};
use crate::output::{Align, Table, bytes, counted, print, print_json};
use anyhow::Result;
use atoll_client::{BilledBy, DeviceUsage, ExecutorMemory, ExecutorUsage, QuotaEntry, Tenant, UsageEntry, UsageReport};
use std::collections::BTreeMap;

const EXAMPLES: &str = "\
Examples:
  atoll usage
  atoll usage --tenant team-a
  atoll usage --json | jq '.rows[] | [.tenant, .function, .billed_s, .billed_by]'

`device s` is time on the device, weighted by the share of its compute units: a second on half of them counts \
half. `billed s` is CPU time where the kernel counts it for the tenant's process, divided by the compute \
units, and `device s` elsewhere; `by` says which. Prices are those of [prices] in the daemon's configuration, \
with `cpu` for CPU stages. `CPU s` and memory are as the system accounts for them. Root and the daemon's own \
user see all tenants, unless they choose one with --tenant.";

/// Report the use of devices and device memory by tenant and function, since the daemon started
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let report = args.control.connect()?.usage().classify()?;
    if args.json {
        return print_json(&report);
    }
    Ok(print(&render(&report))?)
}

fn render(report: &UsageReport) -> String {
    let mut table = Table::new([
        ("device", Align::Left),
        ("tenant", Align::Left),
        ("function", Align::Left),
        ("class", Align::Left),
        ("device s", Align::Right),
        ("billed s", Align::Right),
        ("by", Align::Left),
        ("price", Align::Right),
        ("GiB s", Align::Right),
        ("held", Align::Right),
        ("done", Align::Right),
        ("not done", Align::Right),
        ("preempted", Align::Right),
        ("cold", Align::Right),
        ("written", Align::Right),
        ("read", Align::Right),
    ]);
    report.rows.iter().filter(|row| was_used(row)).for_each(|row| table.row(cells(row)));
    // The column of prices is shown if there are any, and that of devices if there are several.
    if report.devices.iter().all(|device| device.price_per_s.is_none()) {
        table.hide(7);
    }
    if report.devices.len() <= 1 {
        table.hide(0);
    }
    let headline = |DeviceUsage { device, compute_units, device_s, price_per_s }: &DeviceUsage| {
        let price = price_per_s.map(|price| format!(", {price} units a second")).unwrap_or_default();
        let busy = device_s.map(|busy_s| format!(", busy for {}", seconds(busy_s))).unwrap_or_default();
        let (units, uptime) = (counted(*compute_units, "compute unit"), seconds(report.uptime_s));
        format!("{device}, {units}, up for {uptime}{busy}{price}\n")
    };
    let devices: String = report.devices.iter().map(headline).collect();
    let stages = report.cpu_price_per_s.map(|price| format!("CPU stages, {price} units a second of CPU time\n"));
    let stages = stages.unwrap_or_default();
    format!("{devices}{stages}{table}{}{}{}", bills(report), executors(report), quotas(report))
}

/// The use of tenants' processes as the operating system measures it; empty if there are none.
fn executors(report: &UsageReport) -> String {
    if report.executors.is_empty() {
        return String::new();
    }
    let mut table = Table::new([
        ("device", Align::Left),
        ("tenant", Align::Left),
        ("CPU s", Align::Right),
        ("price", Align::Right),
        ("memory", Align::Right),
        ("peak", Align::Right),
        ("limit", Align::Right),
        ("killed", Align::Right),
        ("throttled s", Align::Right),
    ]);
    for ExecutorUsage { device, tenant, cpu_s, price, memory } in &report.executors {
        let of = |value: fn(&ExecutorMemory) -> String| memory.as_ref().map_or_else(|| "-".into(), value);
        table.row([
            device.clone(),
            tenant.to_string(),
            format!("{cpu_s:.3}"),
            price.map_or_else(|| "-".into(), |price| format!("{price:.9}")),
            of(|memory| bytes(memory.bytes)),
            of(|memory| bytes(memory.peak_bytes)),
            of(|memory| memory.limit_bytes.map_or_else(|| "-".into(), bytes)),
            of(|memory| memory.kills.to_string()),
            of(|memory| format!("{:.3}", memory.throttled_s)),
        ]);
    }
    // Without control groups there is CPU time only.
    if report.executors.iter().all(|used| used.memory.is_none()) {
        (4..9).rev().for_each(|column| table.hide(column));
    }
    if report.executors.iter().all(|used| used.price.is_none()) {
        table.hide(3);
    }
    if report.executors.iter().all(|used| used.device == report.executors[0].device) && report.devices.len() <= 1 {
        table.hide(0);
    }
    format!("\n{table}")
}

/// Use against limit, where there is a limit and something is used; empty otherwise.
fn quotas(report: &UsageReport) -> String {
    let mut table =
        Table::new([("tenant", Align::Left), ("quota", Align::Left), ("used", Align::Right), ("limit", Align::Right)]);
    let mut is_empty = true;
    for QuotaEntry { tenant, quota, used, limit } in report.quotas.iter().filter(|entry| entry.used > 0) {
        let Some(limit) = limit else { continue };
        let number = |value: u64| if quota.ends_with("_bytes") { bytes(value) } else { value.to_string() };
        table.row([tenant.to_string(), quota.clone(), number(*used), number(*limit)]);
        is_empty = false;
    }
    if is_empty { String::new() } else { format!("\n{table}") }
}

/// The price of each tenant's device time and CPU stages, if they have prices.
fn bills(report: &UsageReport) -> String {
    let mut bills: BTreeMap<&Tenant, f64> = BTreeMap::new();
    let rows = report.rows.iter().map(|row| (&row.tenant, row.price));
    let stages = report.executors.iter().map(|used| (&used.tenant, used.price));
    for (tenant, price) in rows.chain(stages) {
        if let Some(price) = price {
            *bills.entry(tenant).or_default() += price;
        }
    }
    bills.iter().map(|(tenant, price)| format!("{tenant}: {price:.9} units\n")).collect()
}

/// Rows of zeros are shown in JSON only.
fn was_used(row: &UsageEntry) -> bool {
    row.launches > 0
        || row.billed_s >= 0.001
        || row.memory.values().any(|memory| memory.byte_s > 0.0)
        || row.invocations.values().any(|count| *count > 0)
}

fn cells(row: &UsageEntry) -> [String; 16] {
    let held = row.memory.values().map(|memory| memory.bytes).sum();
    let gib_s = row.memory.values().map(|memory| memory.byte_s).sum::<f64>() / f64::from(1 << 30);
    let invocations: u64 = row.invocations.values().sum();
    let done = row.invocations.get("success").copied().unwrap_or_default();
    [
        row.device.clone(),
        row.tenant.to_string(),
        row.function.clone().unwrap_or_else(|| "(unloaded)".into()),
        class_name(row.class).into(),
        format!("{:.3}", row.device_s),
        format!("{:.3}", row.billed_s),
        match row.billed_by {
            BilledBy::Report => "report".into(),
            BilledBy::Kernel => "kernel".into(),
        },
        row.price.map_or("-".into(), |price| format!("{price:.9}")),
        format!("{gib_s:.3}"),
        bytes(held),
        done.to_string(),
        (invocations - done).to_string(),
        row.preemptions.to_string(),
        row.cold_starts.to_string(),
        bytes(row.written_bytes),
        bytes(row.read_bytes),
    ]
}

/// `2.5 s`, `1 h 3 min`.
fn seconds(value: f64) -> String {
    match value as u64 {
        0..=119 => format!("{value:.1} s"),
        whole if whole < 7_200 => format!("{} min {} s", whole / 60, whole % 60),
        whole => format!("{} h {} min", whole / 3_600, whole / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_client::{Class, MemoryEntry};

    fn row(function: Option<&str>, device_s: f64, launches: u64) -> UsageEntry {
        UsageEntry {
            device: "host:0".into(),
            tenant: "a".parse().unwrap(),
            function: function.map(Into::into),
            class: Class::BestEffort,
            device_s,
            billed_s: device_s,
            billed_by: BilledBy::Report,
            price: None,
            launches,
            evicted_launches: 0,
            aborted_launches: 0,
            memory: BTreeMap::from([(
                "constants".into(),
                MemoryEntry { bytes: 2048, byte_s: 3.0 * f64::from(1 << 30) },
            )]),
            written_bytes: 10,
            read_bytes: 1 << 20,
            invocations: BTreeMap::from([("success".into(), 5), ("failed".into(), 2)]),
            preemptions: 1,
            retries: 0,
            cold_starts: 1,
            disk_cold_starts: 0,
            reclaims: 0,
        }
    }

    #[test]
    fn a_report_is_a_table_with_units() {
        let unused =
            UsageEntry { memory: BTreeMap::new(), invocations: BTreeMap::new(), ..row(Some("unused"), 0.0, 0) };
        let gone = UsageEntry { billed_s: 0.75, billed_by: BilledBy::Kernel, ..row(None, 0.5, 1) };
        let rows = vec![row(Some("f"), 1.25, 7), unused, gone];
        let mut report = UsageReport {
            started_at_s: 0,
            uptime_s: 7_500.0,
            device: "host:0".into(),
            compute_units: 4,
            device_s: Some(1.75),
            rows,
            devices: vec![],
            executors: vec![],
            cpu_price_per_s: None,
            quotas: vec![],
        }
        .complete();
        assert_eq!(
            render(&report),
            "host:0, 4 compute units, up for 2 h 5 min, busy for 1.8 s\n  \
             tenant  function    class        device s  billed s  by      GiB s     held  done  not done  \
             preempted  cold  written     read\n  \
             a       f           best-effort     1.250     1.250  report  3.000  2.0 KiB     5         \
             2          1     1     10 B  1.0 MiB\n  \
             a       (unloaded)  best-effort     0.500     0.750  kernel  3.000  2.0 KiB     5         \
             2          1     1     10 B  1.0 MiB\n"
        );
        report.devices.push(DeviceUsage {
            device: "host:1".into(),
            compute_units: 1,
            device_s: None,
            price_per_s: None,
        });
        report.rows = vec![UsageEntry { device: "host:1".into(), ..row(Some("f"), 1.25, 7) }];
        assert_eq!(
            render(&report),
            "host:0, 4 compute units, up for 2 h 5 min, busy for 1.8 s\n\
             host:1, 1 compute unit, up for 2 h 5 min\n  \
             device  tenant  function  class        device s  billed s  by      GiB s     held  done  not done  \
             preempted  cold  written     read\n  \
             host:1  a       f         best-effort     1.250     1.250  report  3.000  2.0 KiB     5         \
             2          1     1     10 B  1.0 MiB\n"
        );
        report.devices[1].price_per_s = Some(0.5);
        report.rows[0].price = Some(0.625);
        let text = render(&report);
        assert!(text.contains("host:1, 1 compute unit, up for 2 h 5 min, 0.5 units a second\n"), "{text}");
        assert!(text.ends_with("a: 0.625000000 units\n"), "{text}");
    }

    #[test]
    fn processes_and_quotas_are_tables_of_their_own() {
        let mut report = UsageReport {
            started_at_s: 0,
            uptime_s: 1.0,
            device: "host:0".into(),
            compute_units: 4,
            device_s: None,
            rows: vec![],
            devices: vec![],
            executors: vec![ExecutorUsage {
                device: "host:0".into(),
                tenant: "a".parse().unwrap(),
                cpu_s: 1.5,
                price: None,
                memory: None,
            }],
            cpu_price_per_s: None,
            quotas: vec![],
        }
        .complete();
        assert!(render(&report).ends_with("\n\n  tenant  CPU s\n  a       1.500\n"), "{}", render(&report));
        report.executors[0].memory = Some(ExecutorMemory {
            limit_bytes: Some(352 << 20),
            bytes: 0,
            peak_bytes: 352 << 20,
            kills: 1,
            throttled_s: 0.25,
        });
        let quota =
            |quota: &str, used, limit| QuotaEntry { tenant: "a".parse().unwrap(), quota: quota.into(), used, limit };
        report.quotas =
            vec![quota("functions", 3, Some(2)), quota("object_bytes", 1 << 20, Some(1 << 30)), quota("x", 1, None)];
        assert!(
            render(&report).ends_with(
                "\n\n  tenant  CPU s  memory       peak      limit  killed  throttled s\n  \
                 a       1.500     0 B  352.0 MiB  352.0 MiB       1        0.250\n\n  \
                 tenant  quota            used    limit\n  \
                 a       functions           3        2\n  \
                 a       object_bytes  1.0 MiB  1.0 GiB\n"
            ),
            "{}",
            render(&report)
        );
        let stages = |tenant: &str| ExecutorUsage {
            device: "cpu".into(),
            tenant: tenant.parse().unwrap(),
            cpu_s: 0.5,
            price: Some(0.25),
            memory: None,
        };
        report.executors.push(stages("b"));
        report.cpu_price_per_s = Some(0.5);
        let text = render(&report);
        assert!(text.contains("\nCPU stages, 0.5 units a second of CPU time\n"), "{text}");
        assert!(text.contains("b: 0.250000000 units\n") && text.contains("  0.500  0.250000000  "), "{text}");
    }
}
