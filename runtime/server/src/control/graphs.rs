//! Graphs of functions: deploy, list, explain, delete, call.

use super::Control;
use super::admission::report as admission_report;
use super::invoke::Reader;
use super::refusal::{OrRefuse, bad_request, panicked};
use super::requests::{Answered, plain};
use crate::graphs::{Asked, Callee, DeployedGraph, Graphs, Limits, StageWork, run_graph};
use crate::identity::{Principal, Reason};
use crate::model::Model;
use crate::prices::{CPU, price};
use crate::threads::{for_client, for_tenant};
use atoll_control::{
    Answer, Attachments, Form, GraphReport, GraphStage, InvokeGraph, Invoked, Output, Refusal, RefusalKind, Timing,
    Value, VersionEntry,
};
use atoll_core::Nanos;
use atoll_core::graphs::{CostTable, Kind, Plans, StageCost};
use atoll_engine::{EngineStatistics, FunctionKey, InvocationRequest};
use std::sync::Arc;
use std::time::Duration;

/// Checks the limits of a request.
fn limits(deadline_us: Option<u64>, price_max: Option<f64>) -> Result<Limits, Refusal> {
    let checked = |units: f64| price(units).ok_or_else(|| bad_request(format!("{units} is not a price of 0 or more")));
    let price_max = price_max.map(checked).transpose()?;
    Ok(Limits { deadline: deadline_us.map(Duration::from_micros), price_max })
}

impl Control {
    fn all_graphs(&self) -> Result<&Graphs, Refusal> {
        self.app.graphs.as_ref().ok_or_else(|| bad_request("this daemon keeps no graphs"))
    }

    fn graph(&self, principal: &Principal, name: &str) -> Result<Arc<DeployedGraph>, Refusal> {
        let key = FunctionKey { tenant: principal.tenant.clone(), name: name.into() };
        self.all_graphs()?.find(&key).ok_or_else(|| no_graph(name))
    }

    pub(super) async fn deploy_graph(&self, principal: &Principal, name: Option<String>, manifest: String) -> Answered {
        self.all_graphs()?;
        let turn = self.deployed.turn(&principal.tenant).await;
        let (app, tenant) = (self.app.clone(), principal.tenant.clone());
        let deploy = move || {
            // Held until the deployment ends, even if the client disconnects.
            let _turn = turn;
            app.graphs.as_ref().map(|graphs| graphs.deploy(&*app, &tenant, name, manifest).or_refuse())
        };
        let graph = for_tenant(&principal.tenant, deploy).await.flatten().ok_or_else(panicked)??;
        plain(Answer::Graph(self.report(&graph).await?))
    }

    pub(super) async fn graphs(&self, principal: &Principal) -> Answered {
        let mut graphs = Vec::new();
        for graph in self.all_graphs()?.of(&principal.tenant) {
            graphs.push(self.report(&graph).await?);
        }
        plain(Answer::Graphs { graphs })
    }

    pub(super) async fn explain_graph(
        &self,
        principal: &Principal,
        name: &str,
        deadline_us: Option<u64>,
        price_max: Option<f64>,
    ) -> Answered {
        let limits = limits(deadline_us, price_max)?;
        let graph = self.graph(principal, name)?;
        let mut report = self.report(&graph).await?;
        if let Ok(model) = graph.callable(&*self.app) {
            let devices = self.app.engine.devices();
            if let Some(work) = &model.graph {
                work.prepare(None).await;
            }
            report.admission =
                model.graph.as_ref().and_then(|work| admission_report(work, devices, limits)).map(Box::new);
        }
        plain(Answer::Graph(report))
    }

    pub(super) async fn remove_graph(&self, principal: &Principal, name: String) -> Answered {
        self.graph(principal, &name)?;
        let turn = self.deployed.turn(&principal.tenant).await;
        let (app, key) = (self.app.clone(), FunctionKey { tenant: principal.tenant.clone(), name: name.clone() });
        let remove = move || {
            let _turn = turn;
            app.graphs.as_ref().map(|graphs| graphs.remove(&key).or_refuse())
        };
        match for_tenant(&principal.tenant, remove).await.flatten().ok_or_else(panicked)?? {
            true => plain(Answer::Done),
            false => Err(no_graph(&name)),
        }
    }

    pub(super) async fn invoke_graph(
        &self,
        principal: &Principal,
        call: InvokeGraph,
        attachments: Attachments,
    ) -> Answered {
        let not_ready = |reason: String| Refusal {
            kind: RefusalKind::Busy,
            message: format!("graph `{}` cannot be called: {reason}", call.graph),
        };
        let model = self.graph(principal, &call.graph)?.callable(&*self.app).map_err(not_ready)?;
        let class = call.class.unwrap_or(model.class());
        let permit = self.app.admit(principal, &model, class).or_refuse()?;
        if let Some(unknown) = call.inputs.keys().find(|name| !model.inputs.iter().any(|input| input.name == **name)) {
            let known: Vec<&str> = model.inputs.iter().map(|input| input.name.as_str()).collect();
            let message = format!("graph `{}` has no input `{unknown}`; it has {}", call.graph, known.join(", "));
            return Err(bad_request(message));
        }
        let (store, tenant, app) = (self.store.clone(), principal.tenant.clone(), self.app.clone());
        let (inputs, name, metadata) = (call.inputs, call.graph.clone(), model.clone());
        let read = move || {
            let mut reader =
                Reader { store: &store, tenant: &tenant, class, attachments, app: &app, rooms: Vec::new() };
            let input = |metadata: &atoll_protocol::TensorMetadata| {
                let missing = || bad_request(format!("graph `{name}` needs input `{}`", metadata.name));
                reader.content(metadata, inputs.get(&metadata.name).ok_or_else(missing)?)
            };
            let tensors = metadata.inputs.iter().map(input).collect::<Result<Vec<_>, Refusal>>()?;
            Ok::<_, Refusal>((tensors, reader.rooms))
        };
        let (inputs, _rooms) = for_tenant(&principal.tenant, read).await.ok_or_else(panicked)??;
        let Limits { deadline, price_max } = limits(call.deadline_us, call.price_max)?;
        let request = InvocationRequest {
            function: model.key.clone(),
            inputs,
            class: Some(class),
            priority: 0,
            instance: None,
            deadline,
        };
        let _in_use = model.used();
        let asked = Asked { price_max, id: call.id.as_deref().unwrap_or_default() };
        let result = run_graph(self.app.clone(), &self.app.engine, &permit, &model, request, class, asked).await;
        let result = result.or_refuse()?.or_refuse()?;
        let mut attachments = Attachments::default();
        let last = model.graph.as_ref().map_or(0, |graph| graph.works.len().saturating_sub(1));
        let mut outputs = Vec::with_capacity(result.outputs.len());
        for (metadata, tensor) in model.outputs.iter().zip(result.outputs) {
            let form = Form { datatype: metadata.datatype, shape: tensor.shape };
            let blob = self.held.attach(&principal.tenant, &mut attachments, &tensor.bytes);
            let value = Value::Blob(self.counted(principal, class, Reason::Objects, blob)?);
            outputs.push(Output { stage: last, name: metadata.name.clone(), form, value });
        }
        let timing = Timing {
            queue_ns: result.timing.queue_ns,
            input_ns: result.timing.input_ns,
            compute_ns: result.timing.compute_ns,
            output_ns: result.timing.output_ns,
        };
        Ok((Answer::Invoked(Invoked { outputs, timing, preemptions: result.preemptions, plan: None }), attachments))
    }

    async fn report(&self, graph: &DeployedGraph) -> Result<GraphReport, Refusal> {
        let key = graph.key();
        let empty = GraphReport {
            name: key.name.clone(),
            model: key.to_string(),
            failure: None,
            deadline_us: None,
            inputs: Vec::new(),
            outputs: Vec::new(),
            stages: Vec::new(),
            latency_ns: None,
            handed_over_bytes: 0,
            copied_bytes: 0,
            admission: None,
        };
        let model = match graph.callable(&*self.app) {
            Ok(model) => model,
            Err(reason) => return Ok(GraphReport { failure: Some(reason), ..empty }),
        };
        let engine = self.app.engine.clone();
        let statistics = for_client(move || engine.statistics()).await.ok_or_else(panicked)?;
        let Some(work) = &model.graph else { return Ok(empty) };
        let stages = work.graph.stages();
        let describe = |(index, works): (usize, &StageWork)| {
            let (function, builtin) = match works {
                StageWork::Function(callee) => (Some(callee), None),
                StageWork::Builtin(builtin) => (None, Some(builtin.name().to_owned())),
                StageWork::Program(stage) => (None, Some(stage.work.label.clone())),
            };
            let program = match works {
                StageWork::Program(stage) => Some(stage),
                _ => None,
            };
            let names = |callee: &Arc<Callee>| {
                let all = self.app.engine.devices();
                let names = callee.devices().into_iter().filter_map(|device| all.get(usize::from(device.0)));
                names.map(String::as_str).collect::<Vec<_>>().join(", ")
            };
            GraphStage {
                name: stages[index].name.clone(),
                function: function.map(|callee| names_of(callee)),
                builtin,
                device: function.map(names).or_else(|| program.map(|_| CPU.to_owned())),
                after: stages[index].needs.iter().map(|&needed| stages[needed].name.clone()).collect(),
                when: graph.manifest.stages[index].when.clone(),
                mean_ns: match program {
                    Some(stage) => stage.mean_ns(),
                    None => function.and_then(|callee| mean_ns_of(&statistics, callee)),
                },
                versions: function.map_or_else(Vec::new, |callee| versions(callee)),
            }
        };
        let stages: Vec<GraphStage> = work.works.iter().enumerate().map(describe).collect();
        let counts = work.counts();
        Ok(GraphReport {
            deadline_us: work.graph.deadline().map(|after| after.0 / 1_000),
            inputs: model.inputs.clone(),
            outputs: model.outputs.clone(),
            latency_ns: latency_ns(&work.graph, &stages),
            handed_over_bytes: counts.handed_over_bytes,
            copied_bytes: counts.copied_bytes,
            stages,
            ..empty
        })
    }
}

/// The name of a stage's function, or the names of its versions, separated by commas.
fn names_of(callee: &Callee) -> String {
    callee.models().map(|model| model.key.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// The versions of a stage, if it has more than one.
fn versions(callee: &Callee) -> Vec<VersionEntry> {
    let entry = |(version, weight): (&crate::graphs::Version, u32)| {
        let counts = version.counts();
        VersionEntry {
            function: version.model.key.name.clone(),
            weight,
            success: counts.success,
            failure: counts.failure,
            mean_ns: counts.ns.checked_div(counts.success),
        }
    };
    let all: Vec<VersionEntry> = callee.versions().map(entry).collect();
    if all.len() > 1 { all } else { Vec::new() }
}

/// The mean time of a stage in ns, weighted by its versions. Versions that were not called or have
/// weight 0 are ignored.
fn mean_ns_of(statistics: &[EngineStatistics], callee: &Callee) -> Option<u64> {
    let known = callee.versions().filter(|(_, weight)| *weight > 0);
    let known = known.filter_map(|(version, weight)| Some((mean_ns(statistics, &version.model)?, weight)));
    let (ns, weight) = known.fold((0_u128, 0_u128), |(ns, sum), (mean, weight)| {
        (ns + u128::from(mean) * u128::from(weight), sum + u128::from(weight))
    });
    ns.checked_div(weight).map(|ns| u64::try_from(ns).unwrap_or(u64::MAX))
}

/// The mean time of a successful invocation in ns, without its time in queues.
fn mean_ns(statistics: &[EngineStatistics], model: &Model) -> Option<u64> {
    let functions = model.on_its_devices(statistics).flat_map(|engine| &engine.functions);
    let counts = functions.filter(|function| function.key == model.key);
    let (ns, count) = counts.fold((0, 0), |(ns, count), function| {
        (ns + function.input_ns + function.compute_ns + function.output_ns, count + function.success)
    });
    ns.checked_div(count)
}

/// The latency of a graph in ns if no stage waits, by measured mean times. There is one kind of
/// device, so there is one assignment.
fn latency_ns(graph: &atoll_core::graphs::Graph, stages: &[GraphStage]) -> Option<u64> {
    let row = |stage: &GraphStage| {
        // Built-in stages without a device take microseconds.
        let is_small = stage.builtin.is_some() && stage.device.is_none();
        let exec = if is_small { 1 } else { stage.mean_ns?.max(1) };
        Some(vec![Some(StageCost { exec: Nanos(exec), ..StageCost::default() })])
    };
    let rows = stages.iter().map(row).collect::<Option<Vec<_>>>()?;
    let kinds = vec![Kind { name: "measured".into(), is_cpu: true, price_per_s: 0 }];
    let costs = CostTable::new(graph, kinds, rows).ok()?;
    Plans::new(graph, &costs).ok()?.list().first().map(|plan| plan.latency.0)
}

fn no_graph(name: &str) -> Refusal {
    Refusal { kind: RefusalKind::NotFound, message: format!("there is no graph `{name}`") }
}
