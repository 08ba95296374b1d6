//! The entry points of cuDNN 8.9 and 9.13 that are not implemented. They are exported so that a program
//! that refers to one can start.

use super::entry_points;
use crate::status::NOT_SUPPORTED;
use atoll_cuda_library::missing;

/// Declares entry points that print their name once and return an error. They ignore their
/// arguments, which the caller passes in registers and on its own stack.
macro_rules! missing {
    ($($name:ident)+) => {
        entry_points! {
            $(fn $name() {
                Err(missing(stringify!($name), NOT_SUPPORTED))
            })+
        }
    };
}

#[rustfmt::skip]
missing! {
    cudnnActivationBackward cudnnBackendCreateDescriptor cudnnBackendDestroyDescriptor cudnnBackendExecute
    cudnnBackendFinalize cudnnBackendGetAttribute cudnnBackendInitialize cudnnBackendPopulateCudaGraph
    cudnnBackendSetAttribute cudnnBackendUpdateCudaGraph cudnnBatchNormalizationBackward
    cudnnBatchNormalizationBackwardEx cudnnBatchNormalizationForwardTraining cudnnBatchNormalizationForwardTrainingEx
    cudnnBuildRNNDynamic cudnnCTCLoss cudnnCTCLoss_v8 cudnnCopyAlgorithmDescriptor cudnnCreateAlgorithmDescriptor
    cudnnCreateAlgorithmPerformance cudnnCreateAttnDescriptor cudnnCreateCTCLossDescriptor
    cudnnCreateFusedOpsConstParamPack cudnnCreateFusedOpsPlan cudnnCreateFusedOpsVariantParamPack
    cudnnCreatePersistentRNNPlan cudnnCreateRNNDataDescriptor cudnnCreateRNNDescriptor cudnnCreateSeqDataDescriptor
    cudnnCreateSpatialTransformerDescriptor cudnnCreateTensorTransformDescriptor cudnnDeriveNormTensorDescriptor
    cudnnDestroyAlgorithmDescriptor cudnnDestroyAlgorithmPerformance cudnnDestroyAttnDescriptor
    cudnnDestroyCTCLossDescriptor cudnnDestroyFusedOpsConstParamPack cudnnDestroyFusedOpsPlan
    cudnnDestroyFusedOpsVariantParamPack cudnnDestroyPersistentRNNPlan cudnnDestroyRNNDataDescriptor
    cudnnDestroyRNNDescriptor cudnnDestroySeqDataDescriptor cudnnDestroySpatialTransformerDescriptor
    cudnnDestroyTensorTransformDescriptor cudnnDivisiveNormalizationBackward cudnnDivisiveNormalizationForward
    cudnnDropoutBackward cudnnFindRNNBackwardDataAlgorithmEx cudnnFindRNNBackwardWeightsAlgorithmEx
    cudnnFindRNNForwardInferenceAlgorithmEx cudnnFindRNNForwardTrainingAlgorithmEx cudnnFusedOpsExecute
    cudnnGetAlgorithmDescriptor cudnnGetAlgorithmPerformance cudnnGetAlgorithmSpaceSize cudnnGetAttnDescriptor
    cudnnGetBatchNormalizationBackwardExWorkspaceSize cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize
    cudnnGetBatchNormalizationTrainingExReserveSpaceSize cudnnGetCTCLossDescriptor cudnnGetCTCLossDescriptorEx
    cudnnGetCTCLossDescriptor_v8 cudnnGetCTCLossDescriptor_v9 cudnnGetCTCLossWorkspaceSize
    cudnnGetCTCLossWorkspaceSize_v8 cudnnGetFoldedConvBackwardDataDescriptors cudnnGetFusedOpsConstParamPackAttribute
    cudnnGetFusedOpsVariantParamPackAttribute cudnnGetMultiHeadAttnBuffers cudnnGetMultiHeadAttnWeights
    cudnnGetNormalizationBackwardWorkspaceSize cudnnGetNormalizationForwardTrainingWorkspaceSize
    cudnnGetNormalizationTrainingReserveSpaceSize cudnnGetRNNBackwardDataAlgorithmMaxCount
    cudnnGetRNNBackwardWeightsAlgorithmMaxCount cudnnGetRNNBiasMode cudnnGetRNNDataDescriptor cudnnGetRNNDescriptor_v6
    cudnnGetRNNDescriptor_v8 cudnnGetRNNForwardInferenceAlgorithmMaxCount cudnnGetRNNForwardTrainingAlgorithmMaxCount
    cudnnGetRNNLinLayerBiasParams cudnnGetRNNLinLayerMatrixParams cudnnGetRNNMatrixMathType cudnnGetRNNPaddingMode
    cudnnGetRNNParamsSize cudnnGetRNNProjectionLayers cudnnGetRNNTempSpaceSizes cudnnGetRNNTrainingReserveSize
    cudnnGetRNNWeightParams cudnnGetRNNWeightSpaceSize cudnnGetRNNWorkspaceSize cudnnGetSeqDataDescriptor
    cudnnGetTensorTransformDescriptor cudnnIm2Col cudnnInitTransformDest cudnnLRNCrossChannelBackward
    cudnnMakeFusedOpsPlan cudnnMultiHeadAttnBackwardData cudnnMultiHeadAttnBackwardWeights cudnnMultiHeadAttnForward
    cudnnNormalizationBackward cudnnNormalizationForwardInference cudnnNormalizationForwardTraining
    cudnnPoolingBackward cudnnRNNBackwardData cudnnRNNBackwardDataEx cudnnRNNBackwardData_v8 cudnnRNNBackwardWeights
    cudnnRNNBackwardWeightsEx cudnnRNNBackwardWeights_v8 cudnnRNNForward cudnnRNNForwardInference
    cudnnRNNForwardInferenceEx cudnnRNNForwardTraining cudnnRNNForwardTrainingEx cudnnRNNGetClip cudnnRNNGetClip_v8
    cudnnRNNGetClip_v9 cudnnRNNSetClip cudnnRNNSetClip_v8 cudnnRNNSetClip_v9 cudnnReorderFilterAndBias
    cudnnRestoreAlgorithm cudnnSaveAlgorithm cudnnSetAlgorithmDescriptor cudnnSetAlgorithmPerformance
    cudnnSetAttnDescriptor cudnnSetCTCLossDescriptor cudnnSetCTCLossDescriptorEx cudnnSetCTCLossDescriptor_v8
    cudnnSetCTCLossDescriptor_v9 cudnnSetFusedOpsConstParamPackAttribute cudnnSetFusedOpsVariantParamPackAttribute
    cudnnSetPersistentRNNPlan cudnnSetRNNAlgorithmDescriptor cudnnSetRNNBiasMode cudnnSetRNNDataDescriptor
    cudnnSetRNNDescriptor_v6 cudnnSetRNNDescriptor_v8 cudnnSetRNNMatrixMathType cudnnSetRNNPaddingMode
    cudnnSetRNNProjectionLayers cudnnSetSeqDataDescriptor cudnnSetSpatialTransformerNdDescriptor
    cudnnSetTensorTransformDescriptor cudnnSoftmaxBackward cudnnSpatialTfGridGeneratorBackward
    cudnnSpatialTfGridGeneratorForward cudnnSpatialTfSamplerBackward cudnnSpatialTfSamplerForward cudnnTransformFilter
    cudnnTransformTensorEx
}
