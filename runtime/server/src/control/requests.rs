//! Handlers of requests, one function for each. Calls are handled in `invoke.rs`.

use super::Control;
use super::refusal::{OrRefuse, bad_request, panicked};
use super::session::{Interim, Session};
use crate::compiler::CompileProgress;
use crate::deployed::{DeployOptions, DeployedFunction};
use crate::identity::{Principal, Reason, Reloaded};
use crate::limits::CONTENT_BYTES_MAX;
use crate::model::Model;
use crate::threads::for_tenant;
use atoll_control::{
    Answer, Attachments, Blob, CompileStage, Content, Deploy, Form, FunctionCounts, FunctionSummary, ObjectSummary,
    Put, Refusal, RefusalKind, Request, Statistics,
};
use atoll_engine::{Class, DeviceId, FunctionKey};
use atoll_sealed::Digest;
use atoll_store::Lease;
use std::sync::Arc;

pub(super) type Answered = Result<(Answer, Attachments), Refusal>;

/// An answer without attachments.
pub(super) fn plain(answer: Answer) -> Answered {
    Ok((answer, Attachments::default()))
}

impl Control {
    /// Answers a request. Answers that precede the last one go to `interim`.
    pub(super) async fn answer(
        self: &Arc<Control>,
        session: &mut Session,
        request: Request,
        attachments: Attachments,
        interim: Interim,
    ) -> Answered {
        let principal = &session.principal;
        match request {
            Request::Hello { .. } => plain(Answer::Welcome { tenant: principal.tenant.clone() }),
            Request::Deploy(deploy) => self.deploy(principal, deploy, attachments, interim).await,
            Request::Functions => self.functions(principal),
            Request::Describe { function } => self.describe(principal, &function),
            Request::Remove { function } => self.remove(principal, function).await,
            Request::Invoke(invoke) => self.invoke_after(session, invoke, attachments).await,
            Request::DeployGraph { name, manifest } => self.deploy_graph(principal, name, manifest).await,
            Request::Graphs => self.graphs(principal).await,
            Request::ExplainGraph { graph, deadline_us, price_max } => {
                self.explain_graph(principal, &graph, deadline_us, price_max).await
            }
            Request::RemoveGraph { graph } => self.remove_graph(principal, graph).await,
            Request::InvokeGraph(call) => self.invoke_graph_after(principal, call, attachments).await,
            Request::Defer { future, call } => self.defer(principal, future, call, attachments),
            Request::Await { future, timeout_us } => self.await_future(principal, &future, timeout_us).await,
            Request::Futures { future } => self.futures(principal, future.as_deref()),
            Request::Cancel { future } => self.cancel_future(principal, &future).await,
            Request::Forget { future } => self.forget_future(principal, &future),
            Request::CreateInstance(spec) => self.create_instance(principal, spec).await,
            Request::ResizeInstance(resize) => self.resize_instance(principal, resize).await,
            Request::RemoveInstance { instance } => self.remove_instance(principal, &instance).await,
            Request::Instances => self.instances(principal).await,
            Request::Capacity => self.capacity(principal).await,
            Request::GrantLease(spec) => self.grant_lease(principal, spec).await,
            Request::RenewLease(hold) => self.renew_lease(principal, hold).await,
            Request::TakeOverLease(hold) => self.take_over_lease(principal, hold).await,
            Request::ReleaseLease(hold) => self.release_lease(principal, hold).await,
            Request::Leases => self.leases(principal).await,
            Request::Put(put) => self.put(principal, put, attachments).await,
            Request::Get { digest } => self.get(principal, digest).await,
            Request::Drop { digest } => self.drop_object(principal, digest).await,
            Request::Objects => self.objects(principal),
            Request::Statistics => self.statistics(principal).await,
            Request::Usage => self.usage(principal).await,
            Request::Processes => self.processes(principal).await,
            Request::Status => self.status(principal).await,
            Request::Trace { device, from } => self.trace(session, DeviceId(device), from).await,
            Request::Reload => self.reload(principal).await,
            Request::Devices => self.devices(principal).await,
            Request::Drain { device, drained } => self.drain(principal, &device, drained),
            Request::CudaSessions => self.cuda_sessions(principal).await,
            Request::SuspendCudaSession { session } => self.suspend_cuda_session(principal, session).await,
            Request::ResumeCudaSession { session, device } => {
                self.resume_cuda_session(principal, session, device.as_deref()).await
            }
            Request::OpenRing(spec) => self.open_ring(&session.principal, &mut session.ring, spec),
        }
    }

    async fn deploy(
        &self,
        principal: &Principal,
        deploy: Deploy,
        mut attachments: Attachments,
        interim: Interim,
    ) -> Answered {
        let Deploy { name, class, private, device, signature, progress: wants_progress, bundle } = deploy;
        let class = class.unwrap_or(Class::BestEffort);
        self.check_class(principal, class)?;
        let content = taken(&mut attachments, bundle)?;
        let turn = self.deployed.turn(&principal.tenant).await;
        let (deployed, limits) = (self.deployed.clone(), principal.limits);
        let work = move || {
            let content = content.into_sealed().or_refuse()?;
            let options = DeployOptions { name, class, private, device, signature };
            let progress = |CompileProgress { stage, done, total }: CompileProgress| {
                if wants_progress {
                    interim.send(Answer::Compiling(CompileStage { stage, done, total }));
                }
            };
            deployed.deploy(&turn, &limits, options, &content, &progress).or_refuse()
        };
        let deployed = for_tenant(&principal.tenant, work).await.ok_or_else(panicked)?;
        let function = self.counted(principal, class, Reason::Deployment, deployed)?;
        plain(Answer::Deployed(self.summary(&function)))
    }

    fn functions(&self, principal: &Principal) -> Answered {
        let functions = self.deployed.of(&principal.tenant).iter().map(|function| self.summary(function)).collect();
        plain(Answer::Functions { functions })
    }

    fn describe(&self, principal: &Principal, name: &str) -> Answered {
        let function = self.function(principal, name)?;
        let model = ready(&function)?;
        plain(Answer::Description {
            function: self.summary(&function),
            inputs: model.inputs.clone(),
            outputs: model.outputs.clone(),
        })
    }

    async fn remove(&self, principal: &Principal, name: String) -> Answered {
        let turn = self.deployed.turn(&principal.tenant).await;
        let (deployed, removed) = (self.deployed.clone(), name.clone());
        match for_tenant(&principal.tenant, move || deployed.remove(turn, removed))
            .await
            .ok_or_else(panicked)?
            .or_refuse()?
        {
            true => plain(Answer::Done),
            false => Err(no_function(&name)),
        }
    }

    async fn put(&self, principal: &Principal, put: Put, mut attachments: Attachments) -> Answered {
        let class = put.class.unwrap_or(Class::BestEffort);
        self.check_class(principal, class)?;
        let content = taken(&mut attachments, put.blob)?;
        if let Some(form) = &put.form {
            check_form(form, content.bytes())?;
        }
        let (store, tenant, quota) = (self.store.clone(), principal.tenant.clone(), principal.limits.objects);
        let work = move || {
            let content = content.into_sealed().or_refuse()?;
            store.put(&tenant, &quota, class, put.form.map(stored_form), content).or_refuse()
        };
        let stored = for_tenant(&principal.tenant, work).await.ok_or_else(panicked)?;
        plain(Answer::Stored { digest: self.counted(principal, class, Reason::Objects, stored)? })
    }

    async fn get(&self, principal: &Principal, digest: Digest) -> Answered {
        let (store, tenant, held) = (self.store.clone(), principal.tenant.clone(), self.held.clone());
        let work = move || {
            let mut attachments = Attachments::default();
            // Before a copy is made. It is not needed if a client sent the file that is in memory.
            let room = held.reserve(&tenant, store.find(&tenant, digest).or_refuse()?.bytes).or_refuse()?;
            let Lease { content, form } = store.copy(&tenant, digest).or_refuse()?;
            let blob = match content.is_received() || attachments.fits(content.bytes()) {
                true => attachments.add_sealed(&content).or_refuse()?,
                false => room.attach(&mut attachments, &content)?,
            };
            Ok((Answer::Object { form: form.map(wire_form), blob }, attachments))
        };
        let answered = for_tenant(&principal.tenant, work).await.ok_or_else(panicked)?;
        self.counted(principal, Class::BestEffort, Reason::Objects, answered)
    }

    async fn drop_object(&self, principal: &Principal, digest: Digest) -> Answered {
        let (store, tenant) = (self.store.clone(), principal.tenant.clone());
        for_tenant(&principal.tenant, move || store.remove(&tenant, digest)).await.ok_or_else(panicked)?.or_refuse()?;
        plain(Answer::Done)
    }

    fn objects(&self, principal: &Principal) -> Answered {
        let summary = |info: atoll_store::ObjectInfo| ObjectSummary {
            digest: info.digest,
            bytes: info.bytes,
            class: info.class,
            form: info.form.map(wire_form),
            created_s: info.created_s,
            used_s: info.used_s,
            in_memory: info.in_memory,
        };
        plain(Answer::Objects { objects: self.store.list(&principal.tenant).into_iter().map(summary).collect() })
    }

    async fn statistics(&self, principal: &Principal) -> Answered {
        let engine = self.app.engine.clone();
        let devices = for_tenant(&principal.tenant, move || engine.statistics()).await.ok_or_else(panicked)?;
        let functions = devices.into_iter().flat_map(|engine| engine.functions);
        let usage = self.store.usage(&principal.tenant);
        let counts = |function: atoll_engine::FunctionStatistics| FunctionCounts {
            name: function.key.name,
            success: function.success,
            failure: function.failure,
            rejected: function.rejected,
            pending: function.in_queue + function.running,
            compute_ns: function.compute_ns,
        };
        plain(Answer::Statistics(Statistics {
            tenant: principal.tenant.clone(),
            object_bytes: usage.bytes,
            object_bytes_max: principal.limits.objects.all.bytes,
            objects: usage.count,
            objects_max: principal.limits.objects.all.count,
            functions_max: principal.limits.functions,
            functions: functions.filter(|function| function.key.tenant == principal.tenant).map(counts).collect(),
        }))
    }

    async fn reload(&self, principal: &Principal) -> Answered {
        let refuse = |denial: &_| self.app.refuse(denial, principal, Class::BestEffort);
        principal.may_operate().inspect_err(refuse).or_refuse()?;
        if !self.app.gate.can_reload() {
            return Err(bad_request(
                "this daemon has no keys and no certificates; start it with --auth-keys FILE or --tls-cert FILE",
            ));
        }
        let Reloaded { keys, tls } = self.app.reload().await.map_err(|error| {
            bad_request(format!("cannot reload keys and certificates; the old ones stay in force: {error}"))
        })?;
        plain(Answer::Reloaded { keys, tls })
    }

    fn summary(&self, function: &DeployedFunction) -> FunctionSummary {
        let deployment = &function.deployment;
        let devices = function.model.iter().flat_map(|model| model.on_its_devices(self.app.engine.devices()));
        let devices: Vec<String> = devices.cloned().collect();
        FunctionSummary {
            name: function.key.name.clone(),
            model: (!deployment.private).then(|| function.key.to_string()),
            bundle: deployment.bundle,
            bundle_bytes: deployment.bundle_bytes,
            weights_bytes: function.weights_bytes,
            class: deployment.class,
            deployed_s: deployment.deployed_s,
            device: devices.first().cloned(),
            devices,
            failure: function.model.as_ref().err().cloned(),
        }
    }

    /// Refuses a class above the highest one of the tenant.
    pub(super) fn check_class(&self, principal: &Principal, class: Class) -> Result<(), Refusal> {
        principal.may_run(class).inspect_err(|denial| self.app.refuse(denial, principal, class)).or_refuse()
    }

    /// Counts a request that a quota refuses, by reason and in the account of its tenant.
    pub(super) fn counted<T>(
        &self,
        principal: &Principal,
        class: Class,
        reason: Reason,
        result: Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        if result.as_ref().is_err_and(|refusal| refusal.kind == RefusalKind::Quota) {
            self.app.recorder.refusals.charge(reason, principal, class);
        }
        result
    }

    /// A function of the connection's tenant.
    pub(super) fn function(&self, principal: &Principal, name: &str) -> Result<Arc<DeployedFunction>, Refusal> {
        let key = FunctionKey { tenant: principal.tenant.clone(), name: name.into() };
        self.deployed.find(&key).ok_or_else(|| no_function(name))
    }
}

/// The loaded model of a function, or a refusal with the reason why there is none.
pub(super) fn ready(function: &DeployedFunction) -> Result<&Arc<Model>, Refusal> {
    let not_ready = |reason: &String| Refusal {
        kind: RefusalKind::Busy,
        message: format!("function `{}` is not loaded: {reason}", function.key.name),
    };
    function.model.as_ref().map_err(not_ready)
}

fn no_function(name: &str) -> Refusal {
    Refusal { kind: RefusalKind::NotFound, message: format!("there is no function `{name}`") }
}

/// The content that a message refers to, unless it exceeds the limit.
pub(super) fn taken(attachments: &mut Attachments, blob: Blob) -> Result<Content, Refusal> {
    let content = attachments.take(blob).or_refuse()?;
    if content.bytes() > CONTENT_BYTES_MAX {
        return Err(bad_request(format!("{} bytes are too many; the limit is {CONTENT_BYTES_MAX}", content.bytes())));
    }
    Ok(content)
}

/// Checks that form and size agree when the object is stored, so that an error shows before its
/// first use.
fn check_form(form: &Form, bytes: u64) -> Result<(), Refusal> {
    let count = form.shape.iter().try_fold(1_u64, |product, &size| product.checked_mul(u64::try_from(size).ok()?));
    let wanted = form.datatype.element_bytes().and_then(|element| count?.checked_mul(element as u64));
    if wanted == Some(bytes) {
        return Ok(());
    }
    Err(bad_request(format!(
        "the object has {bytes} bytes, which does not match shape {:?} of {}",
        form.shape, form.datatype
    )))
}

pub(super) fn stored_form(form: Form) -> atoll_store::Form {
    atoll_store::Form { datatype: form.datatype, shape: form.shape }
}

pub(super) fn wire_form(form: atoll_store::Form) -> Form {
    Form { datatype: form.datatype, shape: form.shape }
}
