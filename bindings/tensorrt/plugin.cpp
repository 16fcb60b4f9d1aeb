// SPDX-License-Identifier: Apache-2.0
// TensorRT's plugins from the list of operators: one class and one creator, made for each row.
// docs/tensorrt.md says what fields and tensors a plugin has.
#include <NvInferRuntime.h>
#include <NvInferVersion.h>
#include <pthread.h>

#include <cstdio>
#include <cstring>
#include <new>

#include "common/node.h"

#if NV_TENSORRT_MAJOR < 10 || (NV_TENSORRT_MAJOR == 10 && NV_TENSORRT_MINOR < 2)
#error "plugins need TensorRT 10.2 or later"
#endif

namespace
{

using namespace nvinfer1;

constexpr char plugin_namespace[] = "spops";
constexpr char plugin_version[] = "1";
constexpr int32_t DLPACK_HOST = 1, DLPACK_CUDA = 2;
constexpr int32_t MAX_TENSORS = 2 * SPOPS_NODE_MAX_ARGS;

ILoggerFinder *logger_finder = nullptr;

void log_error(const char *message)
{
    ILogger *logger = logger_finder == nullptr ? nullptr : logger_finder->findLogger();
    if (logger != nullptr) logger->log(ILogger::Severity::kERROR, message);
}

// ---- Dtypes -------------------------------------------------------------------------------------

// TensorRT has no f64.
constexpr struct {
    spops_node_dtype mine;
    DataType theirs;
} dtypes[] = {
    {SPOPS_NODE_F32, DataType::kFLOAT},  {SPOPS_NODE_F16, DataType::kHALF},
    {SPOPS_NODE_BF16, DataType::kBF16},  {SPOPS_NODE_F8E4M3, DataType::kFP8},
    {SPOPS_NODE_I8, DataType::kINT8},    {SPOPS_NODE_I32, DataType::kINT32},
    {SPOPS_NODE_I64, DataType::kINT64},  {SPOPS_NODE_U8, DataType::kUINT8},
#if NV_TENSORRT_MAJOR > 10 || NV_TENSORRT_MINOR >= 8
    {SPOPS_NODE_F4E2M1, DataType::kFP4},
#endif
};

spops_node_dtype dtype_of(DataType theirs)
{
    for (const auto &d : dtypes)
        if (d.theirs == theirs) return d.mine;
    return SPOPS_NODE_NONE;
}

bool to_tensorrt(spops_node_dtype mine, DataType *theirs)
{
    for (const auto &d : dtypes) {
        if (d.mine != mine) continue;
        *theirs = d.theirs;
        return true;
    }
    return false;
}

PluginFieldType field_type(spops_node_field_kind kind)
{
    return kind == SPOPS_NODE_FIELD_INTS     ? PluginFieldType::kINT64
           : kind == SPOPS_NODE_FIELD_FLOATS ? PluginFieldType::kFLOAT64
                                             : PluginFieldType::kCHAR;
}

// ---- Sizes that the builder does not know yet -----------------------------------------------------

const void *combine(void *user, char op, spops_node_size a, spops_node_size b)
{
    IExprBuilder &builder = *static_cast<IExprBuilder *>(user);
    const DimensionOperation operation = op == '+'   ? DimensionOperation::kSUM
                                         : op == '-' ? DimensionOperation::kSUB
                                         : op == '*' ? DimensionOperation::kPROD
                                         : op == '/' ? DimensionOperation::kFLOOR_DIV
                                         : op == 'M' ? DimensionOperation::kMAX
                                                     : DimensionOperation::kMIN;
    const auto *x = a.symbol == nullptr ? builder.constant(a.value)
                                        : static_cast<const IDimensionExpr *>(a.symbol);
    const auto *y = b.symbol == nullptr ? builder.constant(b.value)
                                        : static_cast<const IDimensionExpr *>(b.symbol);
    return x == nullptr || y == nullptr ? nullptr : builder.operation(operation, *x, *y);
}

bool set_dims(spops_node_shapes *s, int32_t arg, const DimsExprs &dims)
{
    if (dims.nbDims < 0 || dims.nbDims > SPOPS_NODE_MAX_DIMS) return false;
    s->num_dims[arg] = dims.nbDims;
    for (int32_t i = 0; i < dims.nbDims; ++i)
        s->dims[arg][i] = dims.d[i]->isConstant()
                              ? spops_node_size{dims.d[i]->getConstantValue(), nullptr}
                              : spops_node_size{0, dims.d[i]};
    return true;
}

bool set_dims(spops_node_shapes *s, int32_t arg, const Dims &dims)
{
    if (dims.nbDims < 0 || dims.nbDims > SPOPS_NODE_MAX_DIMS) return false;
    s->num_dims[arg] = dims.nbDims;
    for (int32_t i = 0; i < dims.nbDims; ++i)
        s->dims[arg][i] = spops_node_size{dims.d[i], nullptr};
    return true;
}

// ---- Tensors of a plugin ----------------------------------------------------------------------------

// Which argument each tensor is: inputs that are present, what outputs begin with, outputs.
struct tensors {
    int32_t num_inputs = 0, num_outputs = 0;
    int8_t inputs[MAX_TENSORS], outputs[SPOPS_NODE_MAX_ARGS];
    int8_t begin_of[SPOPS_NODE_MAX_ARGS]; // of an argument: the input that it begins with; -1: none
    int8_t input_of[SPOPS_NODE_MAX_ARGS]; // of an argument: its input; -1: absent

    explicit tensors(const spops_node *node)
    {
        const spops_node_row *row = node->row;
        memset(begin_of, -1, sizeof begin_of);
        memset(input_of, -1, sizeof input_of);
        for (int32_t i = 0; i < row->num_args; ++i) {
            if ((node->present >> i & 1) == 0) continue;
            if (i < row->op->num_inputs) {
                input_of[i] = static_cast<int8_t>(num_inputs);
                inputs[num_inputs++] = static_cast<int8_t>(i);
            } else {
                outputs[num_outputs++] = static_cast<int8_t>(i);
            }
        }
        for (int32_t k = 0; k < row->num_begins; ++k) {
            const int32_t arg = row->begins[k];
            if ((node->begins >> arg & 1) == 0 || (node->present >> arg & 1) == 0) continue;
            begin_of[arg] = static_cast<int8_t>(num_inputs);
            inputs[num_inputs++] = static_cast<int8_t>(arg);
        }
    }

    // The argument of a tensor among inputs and outputs.
    int32_t arg(int32_t position) const
    {
        return position < num_inputs ? inputs[position] : outputs[position - num_inputs];
    }

    bool is_begin(const spops_node_row *row, int32_t position) const
    {
        return position < num_inputs && inputs[position] >= row->op->num_inputs;
    }
};

// The input whose memory an output takes, if the field `alias` says so; -1: none.
int32_t aliased(const spops_node *node, const tensors &t, int32_t arg)
{
    const spops_node_row *row = node->row;
    const spops_operator_argument *o = spops_node_arg(row, arg);

    if ((node->aliases >> arg & 1) == 0) return -1;
    if (t.begin_of[arg] >= 0) return t.begin_of[arg];
    for (int32_t i = 0; o->may_be != nullptr && i < row->op->num_inputs; ++i)
        if (strcmp(spops_node_arg(row, i)->name, o->may_be) == 0) return t.input_of[i];
    return -1;
}

// ---- The plugin -------------------------------------------------------------------------------------

class plugin final : public IPluginV3,
                     public IPluginV3OneCore,
                     public IPluginV3OneBuildV2,
                     public IPluginV3OneRuntime
{
  public:
    // Takes node.
    explicit plugin(spops_node *node) : node_(node), tensors_(node) {}
    ~plugin() override { spops_node_destroy(node_); }
    plugin(const plugin &) = delete;
    plugin &operator=(const plugin &) = delete;

    IPluginCapability *getCapabilityInterface(PluginCapabilityType type) noexcept override
    {
        if (type == PluginCapabilityType::kBUILD) return static_cast<IPluginV3OneBuildV2 *>(this);
        if (type == PluginCapabilityType::kRUNTIME) return static_cast<IPluginV3OneRuntime *>(this);
        return static_cast<IPluginV3OneCore *>(this);
    }

    IPluginV3 *clone() noexcept override
    {
        spops_node *node = spops_node_copy(node_);
        plugin *copy = node == nullptr ? nullptr : new (std::nothrow) plugin(node);
        if (copy == nullptr)
            spops_node_destroy(node);
        else
            copy->device_ = device_;
        return copy;
    }

    AsciiChar const *getPluginName() const noexcept override { return node_->row->op->name; }
    AsciiChar const *getPluginVersion() const noexcept override { return plugin_version; }
    AsciiChar const *getPluginNamespace() const noexcept override { return plugin_namespace; }
    int32_t getNbOutputs() const noexcept override { return tensors_.num_outputs; }

    int32_t getAliasedInput(int32_t output) noexcept override
    {
        if (output < 0 || output >= tensors_.num_outputs) return -1;
        return aliased(node_, tensors_, tensors_.outputs[output]);
    }

    bool supportsFormatCombination(int32_t position, DynamicPluginTensorDesc const *tensors,
                                   int32_t num_inputs, int32_t num_outputs) noexcept override;
    int32_t getOutputDataTypes(DataType *outputs, int32_t num_outputs, DataType const *inputs,
                               int32_t num_inputs) const noexcept override;
    int32_t getOutputShapes(DimsExprs const *inputs, int32_t num_inputs, DimsExprs const *, int32_t,
                            DimsExprs *outputs, int32_t num_outputs,
                            IExprBuilder &builder) noexcept override;
    int32_t configurePlugin(DynamicPluginTensorDesc const *, int32_t num_inputs,
                            DynamicPluginTensorDesc const *, int32_t num_outputs) noexcept override
    {
        return check_counts(num_inputs, num_outputs) ? 0 : -1;
    }
    size_t getWorkspaceSize(DynamicPluginTensorDesc const *inputs, int32_t num_inputs,
                            DynamicPluginTensorDesc const *outputs,
                            int32_t num_outputs) const noexcept override;
    int32_t onShapeChange(PluginTensorDesc const *inputs, int32_t num_inputs,
                          PluginTensorDesc const *outputs, int32_t num_outputs) noexcept override;
    IPluginV3 *attachToContext(IPluginResourceContext *) noexcept override
    {
        auto *attached = static_cast<plugin *>(clone());
        if (attached != nullptr && on_cuda()) attached->device_ = spops_node_cuda_device();
        return attached;
    }
    PluginFieldCollection const *getFieldsToSerialize() noexcept override;
    int32_t enqueue(PluginTensorDesc const *input_descs, PluginTensorDesc const *output_descs,
                    void const *const *inputs, void *const *outputs, void *workspace,
                    cudaStream_t stream) noexcept override;

  private:
    // A library without CUDA serves tests: tensors are in host memory.
    static bool on_cuda() { return spops_has_cuda() != 0; }
    int32_t device() const
    {
        const int32_t found = device_ >= 0 || !on_cuda() ? device_ : spops_node_cuda_device();
        return found < 0 ? 0 : found;
    }
    void begin(spops_node_call *c) const
    {
        spops_node_call_begin(c, node_, on_cuda() ? DLPACK_CUDA : DLPACK_HOST, device());
    }
    bool check_counts(int32_t num_inputs, int32_t num_outputs) const;
    bool add(spops_node_call *c, int32_t arg, const Dims &dims, DataType type, void *data) const;
    bool begin_outputs(const spops_node_call &c, void const *const *inputs, void *const *outputs,
                       void *stream) const;

    spops_node *const node_;
    const tensors tensors_;
    int32_t device_ = -1;
    size_t scratch_ = 0; // of the shapes that came last
    bool has_scratch_ = false;
    PluginField fields_[SPOPS_NODE_MAX_FIELDS];
    PluginFieldCollection collection_{};
};

bool plugin::check_counts(int32_t num_inputs, int32_t num_outputs) const
{
    char message[SPOPS_NODE_ERROR];
    if (num_inputs == tensors_.num_inputs && num_outputs == tensors_.num_outputs) return true;
    snprintf(message, sizeof message, "%s: %d inputs and %d outputs, expected %d and %d",
             node_->row->op->name, static_cast<int>(num_inputs), static_cast<int>(num_outputs),
             static_cast<int>(tensors_.num_inputs), static_cast<int>(tensors_.num_outputs));
    log_error(message);
    return false;
}

bool plugin::supportsFormatCombination(int32_t position, DynamicPluginTensorDesc const *all,
                                       int32_t num_inputs, int32_t num_outputs) noexcept
{
    const spops_node_row *row = node_->row;
    spops_node_dtype known[SPOPS_NODE_MAX_ARGS];
    const spops_node_dtype dtype = dtype_of(all[position].desc.type);

    if (num_inputs != tensors_.num_inputs || num_outputs != tensors_.num_outputs) return false;
    if (all[position].desc.format != TensorFormat::kLINEAR || dtype == SPOPS_NODE_NONE)
        return false;
    const int32_t arg = tensors_.arg(position);
    for (int32_t i = 0; i < SPOPS_NODE_MAX_ARGS; ++i)
        known[i] = SPOPS_NODE_NONE;
    for (int32_t i = 0; i < position; ++i) {
        if (!tensors_.is_begin(row, i))
            known[tensors_.arg(i)] = dtype_of(all[i].desc.type);
        else if (tensors_.arg(i) == arg && position >= num_inputs)
            return dtype == dtype_of(all[i].desc.type); // of the output that begins with it
    }
    if ((row->free_outputs >> arg & 1) != 0 && node_->output_dtype != SPOPS_NODE_NONE &&
        dtype != node_->output_dtype)
        return false;
    return spops_node_accepts(row, known, arg, dtype);
}

int32_t plugin::getOutputDataTypes(DataType *outputs, int32_t num_outputs, DataType const *inputs,
                                   int32_t num_inputs) const noexcept
{
    spops_node_shapes s = {};

    if (!check_counts(num_inputs, num_outputs)) return -1;
    s.node = node_;
    for (int32_t i = 0; i < num_inputs; ++i) {
        if (tensors_.is_begin(node_->row, i)) continue;
        s.dtypes[tensors_.inputs[i]] = dtype_of(inputs[i]);
        s.given |= 1u << tensors_.inputs[i];
    }
    for (int32_t i = 0; i < num_outputs; ++i) {
        const spops_node_dtype dtype = spops_node_output_dtype(&s, tensors_.outputs[i]);
        if (dtype == SPOPS_NODE_NONE || !to_tensorrt(dtype, &outputs[i])) {
            log_error(dtype == SPOPS_NODE_NONE ? s.error : "spops: TensorRT has no such dtype");
            return -1;
        }
    }
    return 0;
}

int32_t plugin::getOutputShapes(DimsExprs const *inputs, int32_t num_inputs, DimsExprs const *,
                                int32_t, DimsExprs *outputs, int32_t num_outputs,
                                IExprBuilder &builder) noexcept
{
    const spops_node_algebra algebra = {&builder, combine};
    spops_node_shapes s = {};

    if (!check_counts(num_inputs, num_outputs)) return -1;
    s.node = node_;
    s.algebra = &algebra;
    s.device_type = on_cuda() ? DLPACK_CUDA : DLPACK_HOST;
    s.device = device();
    for (int32_t i = 0; i < num_inputs; ++i) {
        if (tensors_.is_begin(node_->row, i)) continue;
        if (!set_dims(&s, tensors_.inputs[i], inputs[i])) return -1;
        s.given |= 1u << tensors_.inputs[i];
    }
    for (int32_t i = 0; i < num_outputs; ++i) {
        const int32_t arg = tensors_.outputs[i];
        if (!spops_node_output_shape(&s, arg)) {
            log_error(s.error);
            return -1;
        }
        outputs[i].nbDims = s.num_dims[arg];
        for (int32_t d = 0; d < s.num_dims[arg]; ++d)
            outputs[i].d[d] = s.dims[arg][d].symbol == nullptr
                                  ? builder.constant(s.dims[arg][d].value)
                                  : static_cast<const IDimensionExpr *>(s.dims[arg][d].symbol);
    }
    return 0;
}

bool plugin::add(spops_node_call *c, int32_t arg, const Dims &dims, DataType type, void *data) const
{
    c->shapes.dtypes[arg] = dtype_of(type);
    if (c->shapes.dtypes[arg] == SPOPS_NODE_NONE || !set_dims(&c->shapes, arg, dims)) return false;
    spops_node_call_tensor(c, arg, data);
    return true;
}

size_t plugin::getWorkspaceSize(DynamicPluginTensorDesc const *inputs, int32_t num_inputs,
                                DynamicPluginTensorDesc const *outputs,
                                int32_t num_outputs) const noexcept
{
    spops_node_call c;
    size_t bytes = 0;

    if (!check_counts(num_inputs, num_outputs)) return 0;
    begin(&c);
    for (int32_t i = 0; i < num_inputs + num_outputs; ++i) {
        const DynamicPluginTensorDesc &t = i < num_inputs ? inputs[i] : outputs[i - num_inputs];
        if (!tensors_.is_begin(node_->row, i) &&
            !add(&c, tensors_.arg(i), t.max, t.desc.type, nullptr))
            return 0;
    }
    // Without a device to ask the call takes scratch of the library's own when it runs.
    if (spops_node_call_scratch(&c, &bytes) != SPOPS_STATUS_OK)
        log_error(spops_last_error(nullptr));
    return bytes;
}

int32_t plugin::onShapeChange(PluginTensorDesc const *inputs, int32_t num_inputs,
                              PluginTensorDesc const *outputs, int32_t num_outputs) noexcept
{
    spops_node_call c;

    if (!check_counts(num_inputs, num_outputs)) return -1;
    begin(&c);
    for (int32_t i = 0; i < num_inputs + num_outputs; ++i) {
        const PluginTensorDesc &t = i < num_inputs ? inputs[i] : outputs[i - num_inputs];
        if (!tensors_.is_begin(node_->row, i) && !add(&c, tensors_.arg(i), t.dims, t.type, nullptr))
            return -1;
    }
    has_scratch_ = spops_node_call_scratch(&c, &scratch_) == SPOPS_STATUS_OK;
    if (!has_scratch_) log_error(spops_last_error(nullptr));
    return has_scratch_ ? 0 : -1;
}

PluginFieldCollection const *plugin::getFieldsToSerialize() noexcept
{
    const spops_node_row *row = node_->row;
    int32_t num = 0;

    for (int32_t i = 0; i < row->num_fields; ++i) {
        const spops_node_field &f = row->fields[i];
        const bool is_one = f.attribute != nullptr && f.attribute->kind < SPOPS_ARGUMENT_INTS;
        if (is_one)
            fields_[num++] = PluginField(f.name, &node_->values[i], field_type(f.kind), 1);
        else if (node_->fields[i].data != nullptr)
            fields_[num++] = PluginField(f.name, node_->fields[i].data, field_type(f.kind),
                                         node_->fields[i].count);
    }
    collection_.nbFields = num;
    collection_.fields = fields_;
    return &collection_;
}

// Outputs that the call leaves parts of alone: what is given for them, or zeros.
bool plugin::begin_outputs(const spops_node_call &c, void const *const *inputs,
                           void *const *outputs, void *stream) const
{
    for (int32_t i = 0; i < tensors_.num_outputs; ++i) {
        const int32_t arg = tensors_.outputs[i];
        const int32_t from = tensors_.begin_of[arg];
        int64_t count = 1;
        if (from < 0 && !spops_node_call_keeps(&c, arg)) continue;
        if (from < 0 && aliased(node_, tensors_, arg) >= 0) continue; // it holds its input
        for (int32_t d = 0; d < c.shapes.num_dims[arg]; ++d)
            count *= c.shapes.dims[arg][d].value;
        if (!spops_node_begin_output(c.shapes.device_type, outputs[i],
                                     from < 0 ? nullptr : inputs[from],
                                     spops_node_dtype_bytes(c.shapes.dtypes[arg], count), stream))
            return false;
    }
    return true;
}

int32_t plugin::enqueue(PluginTensorDesc const *input_descs, PluginTensorDesc const *output_descs,
                        void const *const *inputs, void *const *outputs, void *workspace,
                        cudaStream_t stream) noexcept
{
    spops_node_call c;
    spops_value ret;

    begin(&c);
    for (int32_t i = 0; i < tensors_.num_inputs + tensors_.num_outputs; ++i) {
        const bool is_input = i < tensors_.num_inputs;
        const int32_t k = is_input ? i : i - tensors_.num_inputs;
        const PluginTensorDesc &t = is_input ? input_descs[k] : output_descs[k];
        void *data = is_input ? const_cast<void *>(inputs[k]) : outputs[k];
        if (!tensors_.is_begin(node_->row, i) && !add(&c, tensors_.arg(i), t.dims, t.type, data))
            return -1;
    }
    if (!begin_outputs(c, inputs, outputs, stream)) {
        log_error("spops: an output could not be filled");
        return -1;
    }
    spops_node_call_fill(&c);
    const bool lends = has_scratch_ && scratch_ > 0 && workspace != nullptr;
    const spops_status status =
        spops_call_on_stream(stream, lends ? workspace : nullptr, lends ? scratch_ : 0,
                             node_->row->op, c.values, c.num_values, &ret);
    if (status != SPOPS_STATUS_OK) log_error(spops_last_error(nullptr));
    return status == SPOPS_STATUS_OK ? 0 : -1;
}

// ---- Creators ---------------------------------------------------------------------------------------

bool data_type(PluginFieldType type, spops_node_data *out)
{
    switch (type) {
    case PluginFieldType::kINT32: *out = SPOPS_NODE_DATA_I32; return true;
    case PluginFieldType::kINT64: *out = SPOPS_NODE_DATA_I64; return true;
    case PluginFieldType::kFLOAT32: *out = SPOPS_NODE_DATA_F32; return true;
    case PluginFieldType::kFLOAT64: *out = SPOPS_NODE_DATA_F64; return true;
    case PluginFieldType::kCHAR: *out = SPOPS_NODE_DATA_TEXT; return true;
    default: return false;
    }
}

// TensorRT's own words on a node, which say which creator it is.
bool is_tensorrts(const char *name)
{
    return strncmp(name, "plugin_", 7) == 0 || strcmp(name, "aliased") == 0;
}

bool set_fields(spops_node *node, PluginFieldCollection const &given)
{
    char error[SPOPS_NODE_ERROR];
    for (int32_t i = 0; i < given.nbFields; ++i) {
        const PluginField &p = given.fields[i];
        const int32_t field = spops_node_field_find(node->row, p.name);
        spops_node_data type;
        if (field < 0 && p.name != nullptr && is_tensorrts(p.name)) continue;
        if (field < 0 || !data_type(p.type, &type)) {
            snprintf(error, sizeof error, "%s: %s is %s", node->row->op->name,
                     p.name == nullptr ? "a field" : p.name,
                     field < 0 ? "no field of this operator" : "of a type that no field has");
            log_error(error);
            return false;
        }
        if (!spops_node_set(node, field, type, p.data, p.length, error)) {
            log_error(error);
            return false;
        }
    }
    return true;
}

class creator final : public IPluginCreatorV3One
{
  public:
    void open(const spops_node_row *row)
    {
        row_ = row;
        for (int32_t i = 0; i < row->num_fields; ++i)
            fields_[i] = PluginField(row->fields[i].name, nullptr, field_type(row->fields[i].kind),
                                     row->fields[i].most);
        collection_.nbFields = row->num_fields;
        collection_.fields = fields_;
    }
    IPluginV3 *createPlugin(AsciiChar const *, PluginFieldCollection const *given,
                            TensorRTPhase) noexcept override
    {
        spops_node *node = spops_node_create(row_);
        if (node == nullptr) return nullptr;
        plugin *made = given == nullptr || set_fields(node, *given) ? new (std::nothrow)
                                                                          plugin(node)
                                                                    : nullptr;
        if (made == nullptr) spops_node_destroy(node);
        return made;
    }
    PluginFieldCollection const *getFieldNames() noexcept override { return &collection_; }
    AsciiChar const *getPluginName() const noexcept override { return row_->op->name; }
    AsciiChar const *getPluginVersion() const noexcept override { return plugin_version; }
    AsciiChar const *getPluginNamespace() const noexcept override { return plugin_namespace; }

  private:
    const spops_node_row *row_ = nullptr;
    PluginField fields_[SPOPS_NODE_MAX_FIELDS];
    PluginFieldCollection collection_{};
};

// All of them, as long as the process: engines keep their addresses.
struct {
    int32_t num;
    IPluginCreatorInterface **list;
} creators;

void make_creators()
{
    int32_t num = 0;
    const spops_node_row *rows = spops_node_rows(&num);
    auto *made = new (std::nothrow) creator[static_cast<size_t>(num)];
    auto **list = new (std::nothrow) IPluginCreatorInterface *[static_cast<size_t>(num)];

    if (made == nullptr || list == nullptr) return;
    for (int32_t i = 0; i < num; ++i) {
        made[i].open(&rows[i]);
        list[i] = &made[i];
    }
    creators.list = list;
    creators.num = num;
}

} // namespace

// What IPluginRegistry::loadLibrary and trtexec --dynamicPlugins look for.

extern "C" SPOPS_API void setLoggerFinder(ILoggerFinder *finder)
{
    logger_finder = finder;
}

extern "C" SPOPS_API IPluginCreatorInterface *const *getCreators(int32_t &num)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, make_creators);
    num = creators.num;
    return creators.list;
}
