#include "bench/kernels/cublas_lt.h"

#include <dlfcn.h>

#include <memory>
#include <string>

#include <cublasLt.h>

namespace cedar::bench {
namespace {

/// The library's functions and a handle. Made once: never changed, and the handle may be used by several
/// threads.
struct Library {
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulDescCreate) create_operation = nullptr;
  decltype(&cublasLtMatmulDescDestroy) destroy_operation = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_operation = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) create_layout = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) choose = nullptr;
  cublasLtHandle_t handle = nullptr;

  Library() {
    void* library = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    bool found = true;
    const auto find = [&](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      found = found && function != nullptr;
    };
    decltype(&cublasLtCreate) create = nullptr;
    find(create, "cublasLtCreate");
    find(matmul, "cublasLtMatmul");
    find(create_operation, "cublasLtMatmulDescCreate");
    find(destroy_operation, "cublasLtMatmulDescDestroy");
    find(set_operation, "cublasLtMatmulDescSetAttribute");
    find(create_layout, "cublasLtMatrixLayoutCreate");
    find(destroy_layout, "cublasLtMatrixLayoutDestroy");
    find(create_preference, "cublasLtMatmulPreferenceCreate");
    find(destroy_preference, "cublasLtMatmulPreferenceDestroy");
    find(set_preference, "cublasLtMatmulPreferenceSetAttribute");
    find(choose, "cublasLtMatmulAlgoGetHeuristic");
    if (!found || create(&handle) != CUBLAS_STATUS_SUCCESS) handle = nullptr;
  }
};

const Library& library() {
  static const Library loaded;
  return loaded;
}

Status check(const char* action, cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return make_error(Errc::internal, std::string("cublasLt: ") + action + " failed with status " +
                                        std::to_string(static_cast<int>(status)));
}

template <class T>
using Owned = std::unique_ptr<std::remove_pointer_t<T>, cublasStatus_t (*)(T)>;

using Layout = Owned<cublasLtMatrixLayout_t>;

Result<Layout> layout(cudaDataType_t type, int64_t rows, int64_t columns, int64_t stride) {
  cublasLtMatrixLayout_t made = nullptr;
  CEDAR_CHECK_OK(
      check("a layout", library().create_layout(&made, type, static_cast<uint64_t>(rows),
                                                static_cast<uint64_t>(columns), stride)));
  return Layout(made, library().destroy_layout);
}

}  // namespace

bool have_cublas_lt() { return library().handle != nullptr; }

Status multiply_with_cublas_lt(const BfProduct& p, void* workspace, void* stream) {
  const Library& lt = library();
  if (lt.handle == nullptr) return make_error(Errc::unsupported, "libcublasLt.so.13 is missing");
  // Column-major: W is [inputs, outputs] and transposed, x [inputs, rows], y [outputs, rows].
  cublasLtMatmulDesc_t made = nullptr;
  CEDAR_CHECK_OK(check("an operation", lt.create_operation(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F)));
  const Owned<cublasLtMatmulDesc_t> operation(made, lt.destroy_operation);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  CEDAR_CHECK_OK(check("an attribute", lt.set_operation(made, CUBLASLT_MATMUL_DESC_TRANSA,
                                                        &transposed, sizeof transposed)));
  CEDAR_TRY(const Layout w, layout(CUDA_R_16BF, p.inputs, p.outputs, p.inputs));
  CEDAR_TRY(const Layout x, layout(CUDA_R_16BF, p.inputs, p.rows, p.inputs));
  CEDAR_TRY(const Layout y, layout(CUDA_R_16BF, p.outputs, p.rows, p.outputs));

  cublasLtMatmulPreference_t wishes = nullptr;
  CEDAR_CHECK_OK(check("a preference", lt.create_preference(&wishes)));
  const Owned<cublasLtMatmulPreference_t> preference(wishes, lt.destroy_preference);
  const uint64_t workspace_bytes = kProductWorkspace;
  CEDAR_CHECK_OK(
      check("a preference", lt.set_preference(wishes, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                              &workspace_bytes, sizeof workspace_bytes)));
  cublasLtMatmulHeuristicResult_t best{};
  int count = 0;
  const cublasStatus_t chosen =
      lt.choose(lt.handle, made, w.get(), x.get(), y.get(), y.get(), wishes, 1, &best, &count);
  if (chosen != CUBLAS_STATUS_SUCCESS || count == 0) {
    return make_error(Errc::unsupported, "cublasLt: no algorithm for " + std::to_string(p.rows) +
                                             " rows, [" + std::to_string(p.outputs) + ", " +
                                             std::to_string(p.inputs) + "]");
  }
  const float one = 1, zero = 0;
  return check("the product", lt.matmul(lt.handle, made, &one, p.weight, w.get(), p.x, x.get(),
                                        &zero, p.y, y.get(), p.y, y.get(), &best.algo, workspace,
                                        workspace_bytes, static_cast<cudaStream_t>(stream)));
}

}  // namespace cedar::bench
