//! The RPCs of `inference.GRPCInferenceService`. Each decodes its message, calls the same function
//! in `requests/` as the HTTP route, and encodes the result.

use super::convert;
use super::describe;
use super::frames::Rooms;
use super::infer::{Sender, answer, prepare};
use super::proto::inference::cuda_shared_memory_status_response::RegionStatus as CudaRegionMessage;
use super::proto::inference::grpc_inference_service_server::GrpcInferenceService;
use super::proto::inference::model_repository_parameter::ParameterChoice;
use super::proto::inference::repository_index_response::ModelIndex;
use super::proto::inference::system_shared_memory_status_response::RegionStatus as RegionMessage;
use super::proto::inference::*;
use super::settings;
use super::stream::{Answers, Requests, answers};
use crate::app::App;
use crate::identity::Principal;
use crate::model::Model;
use crate::otlp::Arrival;
use crate::repository::LoadError;
use crate::repository::overrides::{LoadValue, Overrides};
use crate::requests::error::{Kind, RequestError};
use crate::requests::{health, metadata, repository, shared_memory, statistics};
use crate::shared_memory::{CudaRegister, Sharing};
use atoll_protocol::{CudaRegionStatus, ModelState, RegionStatus, RegisterRequest};
use std::sync::Arc;
use std::time::Instant;
use tonic::{Request, Response, Status, Streaming};

/// The metadata with which a client asks that an error ends the stream.
const STREAM_ERRORS: &str = "triton_grpc_error";

/// The service.
pub(super) struct Inference {
    pub(super) app: Arc<App>,
}

/// When the headers of a request arrived, and until when the client waits for the answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) arrival: Arrival,
    pub(super) deadline: Option<Instant>,
}

/// A value that the layers in front of the service have attached to a request.
fn extension<T: Clone + Send + Sync + 'static>(request: &Request<impl Sized>) -> Result<T, Status> {
    let missing = || Status::internal("internal error: a request was not checked; please report this bug");
    request.extensions().get::<T>().cloned().ok_or_else(missing)
}

fn caller(request: &Request<impl Sized>) -> Result<Arc<Principal>, Status> {
    extension(request)
}

fn version(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

impl Inference {
    fn find(&self, caller: &Principal, name: &str, of: &str) -> Result<Arc<Model>, RequestError> {
        Ok(self.app.find(caller, name, version(of))?)
    }

    fn sender(&self, request: &Request<impl Sized>) -> Result<(Sender, Times, Rooms), Status> {
        let times: Times = extension(request)?;
        let Times { arrival, deadline } = times;
        let sender = Sender { app: self.app.clone(), caller: caller(request)?, arrival, deadline };
        Ok((sender, times, extension(request)?))
    }
}

#[tonic::async_trait]
impl GrpcInferenceService for Inference {
    async fn server_live(&self, _: Request<ServerLiveRequest>) -> Result<Response<ServerLiveResponse>, Status> {
        Ok(Response::new(ServerLiveResponse { live: true }))
    }

    async fn server_ready(&self, _: Request<ServerReadyRequest>) -> Result<Response<ServerReadyResponse>, Status> {
        Ok(Response::new(ServerReadyResponse { ready: health::is_ready(&self.app).await }))
    }

    async fn model_ready(&self, request: Request<ModelReadyRequest>) -> Result<Response<ModelReadyResponse>, Status> {
        let (caller, asked) = (caller(&request)?, request.into_inner());
        let ready = match health::model_is_ready(&self.app, &caller, &asked.name, version(&asked.version)).await {
            // As in Triton, a model or version that does not exist is not ready.
            Err(error) if error.kind == Kind::NotFound => false,
            ready => ready?,
        };
        Ok(Response::new(ModelReadyResponse { ready }))
    }

    async fn server_metadata(
        &self,
        _: Request<ServerMetadataRequest>,
    ) -> Result<Response<ServerMetadataResponse>, Status> {
        let atoll_protocol::ServerMetadata { name, version, extensions } = metadata::server(&self.app);
        Ok(Response::new(ServerMetadataResponse { name, version, extensions }))
    }

    async fn model_metadata(
        &self,
        request: Request<ModelMetadataRequest>,
    ) -> Result<Response<ModelMetadataResponse>, Status> {
        let (caller, asked) = (caller(&request)?, request.into_inner());
        let metadata = self.app.metadata(&caller, &asked.name, version(&asked.version)).map_err(RequestError::from)?;
        Ok(Response::new(describe::metadata(metadata)))
    }

    async fn model_infer(&self, request: Request<ModelInferRequest>) -> Result<Response<ModelInferResponse>, Status> {
        let (sender, times, rooms) = self.sender(&request)?;
        let _room = rooms.take();
        let (model, checked) = prepare(&sender, request.into_inner())?;
        if model.is_decoupled() {
            // The text is Triton's, up to the semicolon.
            let text = "ModelInfer RPC doesn't support models with decoupled transaction policy; use ModelStreamInfer";
            return Err(RequestError::new(Kind::Unsupported, text).into());
        }
        let answer = answer(&sender, &model, checked, times.arrival).await?;
        Ok(Response::new(convert::response(answer)))
    }

    type ModelStreamInferStream = Answers;

    async fn model_stream_infer(
        &self,
        request: Request<Streaming<ModelInferRequest>>,
    ) -> Result<Response<Answers>, Status> {
        let (sender, _, rooms) = self.sender(&request)?;
        let ends_with_error = request.metadata().get(STREAM_ERRORS).is_some_and(|value| value.as_bytes() == b"true");
        let progress = extension(&request)?;
        let messages = request.into_inner();
        Ok(Response::new(answers(Requests { sender, rooms, progress, ends_with_error, messages })))
    }

    async fn model_config(
        &self,
        request: Request<ModelConfigRequest>,
    ) -> Result<Response<ModelConfigResponse>, Status> {
        let (caller, asked) = (caller(&request)?, request.into_inner());
        let model = self.find(&caller, &asked.name, &asked.version)?;
        Ok(Response::new(ModelConfigResponse { config: Some(describe::config(model.config())) }))
    }

    async fn model_statistics(
        &self,
        request: Request<ModelStatisticsRequest>,
    ) -> Result<Response<ModelStatisticsResponse>, Status> {
        let (caller, asked) = (caller(&request)?, request.into_inner());
        let models = match &*asked.name {
            "" => self.app.models_of(&caller),
            name => self.app.find_all(&caller, name, version(&asked.version)).map_err(RequestError::from)?,
        };
        let statistics = statistics::statistics(&self.app, models).await?;
        let model_stats = statistics.model_stats.into_iter().map(describe::statistics).collect();
        Ok(Response::new(ModelStatisticsResponse { model_stats }))
    }

    async fn repository_index(
        &self,
        request: Request<RepositoryIndexRequest>,
    ) -> Result<Response<RepositoryIndexResponse>, Status> {
        let (caller, asked) = (caller(&request)?, request.into_inner());
        let state = |state| match state {
            ModelState::Ready => "READY",
            ModelState::Loading => "LOADING",
            ModelState::Unloading => "UNLOADING",
            ModelState::Unavailable => "UNAVAILABLE",
        };
        let models = repository::index(&self.app, &caller, asked.ready).await?.into_iter().map(|entry| ModelIndex {
            name: entry.name,
            version: entry.version,
            state: state(entry.state).into(),
            reason: entry.reason,
        });
        Ok(Response::new(RepositoryIndexResponse { models: models.collect() }))
    }

    async fn repository_model_load(
        &self,
        request: Request<RepositoryModelLoadRequest>,
    ) -> Result<Response<RepositoryModelLoadResponse>, Status> {
        let (caller, rooms) = (caller(&request)?, extension::<Rooms>(&request)?);
        let _room = rooms.take();
        let asked = request.into_inner();
        repository::check(&self.app, &caller, &asked.model_name, LoadError::Unknown)?;
        let mut overrides = Overrides::default();
        for (name, parameter) in asked.parameters {
            let value = match parameter.parameter_choice {
                Some(ParameterChoice::StringParam(text)) => LoadValue::Text(text),
                Some(ParameterChoice::BytesParam(bytes)) => LoadValue::Bytes(bytes),
                _ => LoadValue::Other,
            };
            overrides.add(name, value).map_err(RequestError::from)?;
        }
        repository::load(self.app.clone(), &caller, asked.model_name, overrides).await?;
        Ok(Response::new(RepositoryModelLoadResponse {}))
    }

    async fn repository_model_unload(
        &self,
        request: Request<RepositoryModelUnloadRequest>,
    ) -> Result<Response<RepositoryModelUnloadResponse>, Status> {
        let (caller, asked) = (caller(&request)?, request.into_inner());
        repository::check(&self.app, &caller, &asked.model_name, LoadError::NotServed)?;
        let dependents = asked.parameters.get("unload_dependents").and_then(|it| it.parameter_choice.as_ref());
        let dependents = matches!(dependents, Some(ParameterChoice::BoolParam(true)));
        repository::unload(self.app.clone(), &caller, asked.model_name, dependents).await?;
        Ok(Response::new(RepositoryModelUnloadResponse {}))
    }

    async fn system_shared_memory_status(
        &self,
        request: Request<SystemSharedMemoryStatusRequest>,
    ) -> Result<Response<SystemSharedMemoryStatusResponse>, Status> {
        let (caller, asked) = (caller(&request)?, request.into_inner());
        let status = |RegionStatus { name, key, offset, byte_size }| RegionMessage { name, key, offset, byte_size };
        let regions = shared_memory::status(&self.app, &caller, &asked.name)?.into_iter();
        let regions = regions.map(|region| (region.name.clone(), status(region))).collect();
        Ok(Response::new(SystemSharedMemoryStatusResponse { regions }))
    }

    async fn system_shared_memory_register(
        &self,
        request: Request<SystemSharedMemoryRegisterRequest>,
    ) -> Result<Response<SystemSharedMemoryRegisterResponse>, Status> {
        let (caller, asked) = (caller(&request)?, request.into_inner());
        let SystemSharedMemoryRegisterRequest { name, key, offset, byte_size } = asked;
        shared_memory::register(&self.app, &caller, name, RegisterRequest { key, offset, byte_size }).await?;
        Ok(Response::new(SystemSharedMemoryRegisterResponse {}))
    }

    async fn system_shared_memory_unregister(
        &self,
        request: Request<SystemSharedMemoryUnregisterRequest>,
    ) -> Result<Response<SystemSharedMemoryUnregisterResponse>, Status> {
        let caller = caller(&request)?;
        shared_memory::unregister(&self.app, &caller, &request.into_inner().name, Sharing::System);
        Ok(Response::new(SystemSharedMemoryUnregisterResponse::default()))
    }

    async fn cuda_shared_memory_status(
        &self,
        request: Request<CudaSharedMemoryStatusRequest>,
    ) -> Result<Response<CudaSharedMemoryStatusResponse>, Status> {
        let (caller, asked) = (caller(&request)?, request.into_inner());
        let status = |CudaRegionStatus { name, device_id, byte_size }| CudaRegionMessage { name, device_id, byte_size };
        let regions = shared_memory::cuda_status(&self.app, &caller, &asked.name)?.into_iter();
        let regions = regions.map(|region| (region.name.clone(), status(region))).collect();
        Ok(Response::new(CudaSharedMemoryStatusResponse { regions }))
    }

    async fn cuda_shared_memory_register(
        &self,
        request: Request<CudaSharedMemoryRegisterRequest>,
    ) -> Result<Response<CudaSharedMemoryRegisterResponse>, Status> {
        let (caller, asked) = (caller(&request)?, request.into_inner());
        let CudaSharedMemoryRegisterRequest { name, raw_handle: handle, device_id, byte_size } = asked;
        let region = CudaRegister { handle, device_id, byte_size };
        shared_memory::register_cuda(&self.app, &caller, name, region).await?;
        Ok(Response::new(CudaSharedMemoryRegisterResponse {}))
    }

    async fn cuda_shared_memory_unregister(
        &self,
        request: Request<CudaSharedMemoryUnregisterRequest>,
    ) -> Result<Response<CudaSharedMemoryUnregisterResponse>, Status> {
        let caller = caller(&request)?;
        shared_memory::unregister(&self.app, &caller, &request.into_inner().name, Sharing::Cuda);
        Ok(Response::new(CudaSharedMemoryUnregisterResponse::default()))
    }

    async fn trace_setting(
        &self,
        request: Request<TraceSettingRequest>,
    ) -> Result<Response<TraceSettingResponse>, Status> {
        let (caller, asked) = (caller(&request)?, request.into_inner());
        if !asked.model_name.is_empty() {
            self.find(&caller, &asked.model_name, "")?;
        }
        Ok(Response::new(settings::trace(&self.app, &caller, asked)?))
    }

    async fn log_settings(
        &self,
        request: Request<LogSettingsRequest>,
    ) -> Result<Response<LogSettingsResponse>, Status> {
        let caller = caller(&request)?;
        Ok(Response::new(settings::logging(&self.app, &caller, request.into_inner())?))
    }
}
