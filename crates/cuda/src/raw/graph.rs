//! Graphs that are made node by node, and whose arguments change between launches.

use std::ffi::c_void;
use std::ptr;

use flashcore_ir::proof::LaunchShape;

use super::launch::attribute_value;
use super::{CallResult, Driver, call};
use crate::sys::{
    CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC, CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, CUDA_KERNEL_NODE_PARAMS_v2_st,
    CUfunction, CUgraph, CUgraphEdgeData_st, CUgraphExec, CUgraphNode, launch_attribute, status,
};

fn parameters(
    function: CUfunction,
    shape: &LaunchShape,
    arguments: &mut [*mut c_void],
) -> CUDA_KERNEL_NODE_PARAMS_v2_st {
    CUDA_KERNEL_NODE_PARAMS_v2_st {
        func: function,
        gridDimX: shape.grid[0],
        gridDimY: shape.grid[1],
        gridDimZ: shape.grid[2],
        blockDimX: shape.block[0],
        blockDimY: shape.block[1],
        blockDimZ: shape.block[2],
        sharedMemBytes: shape.dynamic_shared_bytes,
        kernelParams: arguments.as_mut_ptr(),
        extra: ptr::null_mut(),
        // Both are for kernels without a function.
        kern: ptr::null_mut(),
        ctx: ptr::null_mut(),
    }
}

impl Driver {
    /// Adds a kernel after the node `before` of a graph, if there is one. The edge between them is the one that
    /// capturing the two launches of a stream makes.
    ///
    /// # Safety
    /// As [`Driver::launch`], for each launch of the graph.
    pub(crate) unsafe fn graph_add_kernel(
        &self,
        graph: CUgraph,
        before: Option<CUgraphNode>,
        function: CUfunction,
        shape: &LaunchShape,
        arguments: &mut [*mut c_void],
    ) -> CallResult<CUgraphNode> {
        let parameters = parameters(function, shape, arguments);
        let what = format_args!("graph={graph:p}, before={before:?}, function={function:p}, {shape:?}");
        let mut node = ptr::null_mut();
        // SAFETY: rules 1 and 2 of `raw` for the graph and the parameters; the caller vouches for the arguments, which
        // the driver copies before it returns.
        unsafe {
            call!(
                self.cuGraphAddKernelNode_v2(&mut node, graph, ptr::null(), 0, &parameters),
                "{what}"
            )?;
        }
        if shape.cluster != [1, 1, 1] {
            let (id, value) = (
                launch_attribute::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                attribute_value(shape.cluster),
            );
            // SAFETY: rules 1 and 2 of `raw`; the node is of this graph.
            unsafe { call!(self.cuGraphKernelNodeSetAttribute(node, id, &value), "{what}")? };
        }
        if let Some(before) = before {
            let (port, kind) = match shape.programmatic_dependent {
                true => (
                    CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC,
                    CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC,
                ),
                false => (0, 0),
            };
            let edge = CUgraphEdgeData_st {
                from_port: port,
                to_port: 0,
                type_: kind,
                reserved: [0; 5],
            };
            let code = match self.table.cuGraphAddDependencies_v2 {
                // SAFETY: rules 1 and 2 of `raw`; both nodes are of this graph.
                Some(add) => self.in_mode(true, || unsafe { add(graph, &before, &node, &edge, 1) }),
                None => status::CUDA_ERROR_NOT_FOUND,
            };
            self.check("cuGraphAddDependencies_v2", code, || what.to_string())?;
        }
        Ok(node)
    }

    /// Sets what a kernel of an executable graph is launched with from now on. Its cluster and its edges stay.
    ///
    /// # Safety
    /// As [`Driver::launch`], for each launch of the graph.
    pub(crate) unsafe fn graph_set_kernel(
        &self,
        exec: CUgraphExec,
        node: CUgraphNode,
        function: CUfunction,
        shape: &LaunchShape,
        arguments: &mut [*mut c_void],
    ) -> CallResult<()> {
        let parameters = parameters(function, shape, arguments);
        let what = format_args!("exec={exec:p}, node={node:p}, function={function:p}, {shape:?}");
        // SAFETY: as for adding it.
        unsafe {
            call!(
                self.cuGraphExecKernelNodeSetParams_v2(exec, node, &parameters),
                "{what}"
            )
        }
    }
}
