// SPDX-License-Identifier: Apache-2.0
#include "tests/bindings/drive_tensorrt.h"

#include <NvInferRuntime.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <list>
#include <string>
#include <vector>

#include "common/node.h"

using namespace nvinfer1;

namespace
{

std::string last_error;

struct logger final : ILogger {
    void log(Severity severity, AsciiChar const *message) noexcept override
    {
        if (severity <= Severity::kERROR) last_error = message;
    }
} the_logger;

struct finder final : ILoggerFinder {
    ILogger *findLogger() override { return &the_logger; }
} the_finder;

struct opened {
    void *plugins = nullptr;
    std::vector<IPluginCreatorV3One *> creators;
    std::vector<std::string> fields;
} all;

constexpr struct {
    spops_node_dtype mine;
    DataType theirs;
} dtypes[] = {
    {SPOPS_NODE_F32, DataType::kFLOAT}, {SPOPS_NODE_F16, DataType::kHALF},
    {SPOPS_NODE_BF16, DataType::kBF16}, {SPOPS_NODE_F8E4M3, DataType::kFP8},
    {SPOPS_NODE_I8, DataType::kINT8},   {SPOPS_NODE_I32, DataType::kINT32},
    {SPOPS_NODE_I64, DataType::kINT64}, {SPOPS_NODE_U8, DataType::kUINT8},
};

DataType theirs(int32_t mine)
{
    for (const auto &d : dtypes)
        if (d.mine == mine) return d.theirs;
    return DataType::kBOOL; // which no operator takes
}

int32_t mine(DataType of)
{
    for (const auto &d : dtypes)
        if (d.theirs == of) return d.mine;
    return -1;
}

PluginFieldType field_type(int32_t type)
{
    switch (type) {
    case SPOPS_NODE_DATA_I32: return PluginFieldType::kINT32;
    case SPOPS_NODE_DATA_I64: return PluginFieldType::kINT64;
    case SPOPS_NODE_DATA_F32: return PluginFieldType::kFLOAT32;
    case SPOPS_NODE_DATA_F64: return PluginFieldType::kFLOAT64;
    case SPOPS_NODE_DATA_TEXT: return PluginFieldType::kCHAR;
    default: return PluginFieldType::kUNKNOWN;
    }
}

// ---- Sizes, known or not, as a builder's expressions --------------------------------------------------

struct size_impl final : apiv::VDimensionExpr {
    size_impl(int64_t v, bool known) : value(v), is_known(known) {}
    bool isConstant() const override { return is_known; }
    int64_t getConstantValue() const override { return is_known ? value : INT64_MIN; }
    bool isSizeTensor() const override { return false; }
    int64_t value;
    bool is_known;
};

struct size final : IDimensionExpr {
    size(int64_t value, bool is_known) : impl(value, is_known) { mImpl = &impl; }
    size_impl impl;
};

struct builder_impl final : apiv::VExprBuilder {
    std::list<size> sizes;
    IDimensionExpr const *constant(int64_t value) override
    {
        sizes.emplace_back(value, true);
        return &sizes.back();
    }
    IDimensionExpr const *operation(DimensionOperation op, IDimensionExpr const &a,
                                    IDimensionExpr const &b) override
    {
        const size_impl &p = static_cast<const size &>(a).impl,
                        &q = static_cast<const size &>(b).impl;
        const int64_t x = p.value, y = q.value;
        int64_t z = 0;
        switch (op) {
        case DimensionOperation::kSUM: z = x + y; break;
        case DimensionOperation::kSUB: z = x - y; break;
        case DimensionOperation::kPROD: z = x * y; break;
        case DimensionOperation::kMAX: z = x > y ? x : y; break;
        case DimensionOperation::kMIN: z = x < y ? x : y; break;
        case DimensionOperation::kFLOOR_DIV: z = y == 0 ? 0 : x / y; break;
        default: return nullptr;
        }
        sizes.emplace_back(z, p.is_known && q.is_known);
        return &sizes.back();
    }
    IDimensionExpr const *declareSizeTensor(int32_t, IDimensionExpr const &,
                                            IDimensionExpr const &) override
    {
        return nullptr;
    }
};

struct builder final : IExprBuilder {
    builder() { mImpl = &impl; }
    builder_impl impl;
};

// ---- Descriptions of tensors --------------------------------------------------------------------------

PluginTensorDesc desc_of(const drive_tensor &t, TensorFormat format = TensorFormat::kLINEAR)
{
    PluginTensorDesc d{};
    d.type = theirs(t.dtype);
    d.format = format;
    d.scale = 1.0f;
    d.dims.nbDims = t.num_dims;
    for (int32_t i = 0; i < t.num_dims; ++i)
        d.dims.d[i] = t.dims[i];
    return d;
}

std::vector<DynamicPluginTensorDesc> dynamic_of(const drive_tensor *tensors, int32_t num,
                                                TensorFormat format = TensorFormat::kLINEAR)
{
    std::vector<DynamicPluginTensorDesc> all_of_them(static_cast<size_t>(num));
    for (int32_t i = 0; i < num; ++i) {
        DynamicPluginTensorDesc &d = all_of_them[static_cast<size_t>(i)];
        d.desc = desc_of(tensors[i], format);
        d.min = d.opt = d.max = d.desc.dims;
    }
    return all_of_them;
}

std::vector<PluginTensorDesc> descs_of(const drive_tensor *tensors, int32_t num)
{
    std::vector<PluginTensorDesc> all_of_them;
    for (int32_t i = 0; i < num; ++i)
        all_of_them.push_back(desc_of(tensors[i]));
    return all_of_them;
}

IPluginV3OneBuildV2 *building(void *p)
{
    return static_cast<IPluginV3OneBuildV2 *>(
        static_cast<IPluginV3 *>(p)->getCapabilityInterface(PluginCapabilityType::kBUILD));
}

IPluginV3OneRuntime *running(void *p)
{
    return static_cast<IPluginV3OneRuntime *>(
        static_cast<IPluginV3 *>(p)->getCapabilityInterface(PluginCapabilityType::kRUNTIME));
}

bool is_ours(IPluginCreatorInterface *c, IPluginCreatorV3One **out)
{
    if (strcmp(c->getInterfaceInfo().kind, "PLUGIN CREATOR_V3ONE") != 0) return false;
    *out = static_cast<IPluginCreatorV3One *>(c);
    return strcmp((*out)->getPluginNamespace(), "spops") == 0;
}

void add_creators(IPluginCreatorInterface *const *list, int32_t num)
{
    for (int32_t i = 0; list != nullptr && i < num; ++i) {
        IPluginCreatorV3One *c = nullptr;
        std::string names;
        if (!is_ours(list[i], &c)) continue;
        const PluginFieldCollection *fields = c->getFieldNames();
        for (int32_t k = 0; k < fields->nbFields; ++k)
            names += std::string(k > 0 ? " " : "") + fields->fields[k].name;
        all.creators.push_back(c);
        all.fields.push_back(names);
    }
}

bool open_by_registry(const char *plugins, const char *runtime)
{
    void *library = dlopen(runtime, RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
        last_error = dlerror();
        return false;
    }
    auto get = reinterpret_cast<IPluginRegistry *(*)()>(dlsym(library, "getPluginRegistry"));
    IPluginRegistry *registry = get == nullptr ? nullptr : get();
    if (registry == nullptr) return false;
    registry->setErrorRecorder(nullptr);
    if (registry->loadLibrary(plugins) == nullptr) return false;
    int32_t num = 0;
    auto *list = registry->getAllCreators(&num);
    add_creators(list, num);
    return true;
}

} // namespace

int32_t drive_open(const char *plugins, const char *runtime)
{
    all.creators.clear();
    all.fields.clear();
    all.plugins = dlopen(plugins, RTLD_NOW | RTLD_LOCAL);
    if (all.plugins == nullptr) {
        last_error = dlerror();
        return -1;
    }
    auto set = reinterpret_cast<void (*)(ILoggerFinder *)>(dlsym(all.plugins, "setLoggerFinder"));
    auto get = reinterpret_cast<IPluginCreatorInterface *const *(*)(int32_t &)>(
        dlsym(all.plugins, "getCreators"));
    if (set == nullptr || get == nullptr) return -1;
    if (runtime != nullptr && runtime[0] != '\0') {
        if (!open_by_registry(plugins, runtime)) return -1;
    } else {
        int32_t num = 0;
        auto *list = get(num);
        add_creators(list, num);
    }
    set(&the_finder);
    return static_cast<int32_t>(all.creators.size());
}

const char *drive_creator(int32_t index, const char **fields)
{
    if (index < 0 || static_cast<size_t>(index) >= all.creators.size()) return nullptr;
    if (fields != nullptr) *fields = all.fields[static_cast<size_t>(index)].c_str();
    return all.creators[static_cast<size_t>(index)]->getPluginName();
}

void *drive_create(const char *name, const drive_field *fields, int32_t num_fields)
{
    std::vector<PluginField> given;
    IPluginCreatorV3One *c = nullptr;

    for (IPluginCreatorV3One *found : all.creators)
        if (strcmp(found->getPluginName(), name) == 0) c = found;
    if (c == nullptr) return nullptr;
    for (int32_t i = 0; i < num_fields; ++i)
        given.emplace_back(fields[i].name, fields[i].data, field_type(fields[i].type),
                           fields[i].length);
    const PluginFieldCollection collection = {num_fields, given.data()};
    IPluginV3 *built = c->createPlugin("layer", &collection, TensorRTPhase::kBUILD);
    IPluginV3 *copy = built == nullptr ? nullptr : built->clone();
    delete built;
    if (copy == nullptr) return nullptr;
    // As an engine's file has them: copies of all bytes.
    std::list<std::vector<char>> bytes;
    std::list<std::string> names;
    std::vector<PluginField> written;
    const PluginFieldCollection *serialised = running(copy)->getFieldsToSerialize();
    for (int32_t i = 0; i < serialised->nbFields; ++i) {
        const PluginField &f = serialised->fields[i];
        const size_t n = static_cast<size_t>(f.length) * (f.type == PluginFieldType::kCHAR ? 1 : 8);
        const char *data = static_cast<const char *>(f.data);
        bytes.emplace_back(data, data + n);
        names.emplace_back(f.name);
        written.emplace_back(names.back().c_str(), bytes.back().data(), f.type, f.length);
    }
    delete copy;
    const PluginFieldCollection again = {static_cast<int32_t>(written.size()), written.data()};
    IPluginV3 *read = c->createPlugin("layer", &again, TensorRTPhase::kRUNTIME);
    IPluginV3 *attached = read == nullptr ? nullptr : running(read)->attachToContext(nullptr);
    delete read;
    return attached;
}

void drive_destroy(void *plugin)
{
    delete static_cast<IPluginV3 *>(plugin);
}

int32_t drive_num_outputs(void *plugin)
{
    return building(plugin)->getNbOutputs();
}

int32_t drive_aliased(void *plugin, int32_t output)
{
    return building(plugin)->getAliasedInput(output);
}

int32_t drive_shapes(void *plugin, const drive_tensor *inputs, int32_t num_inputs,
                     drive_tensor *outputs, int32_t num_outputs, int32_t symbolic)
{
    std::vector<DataType> in, out(static_cast<size_t>(num_outputs));
    std::vector<DimsExprs> shapes(static_cast<size_t>(num_inputs)),
        made(static_cast<size_t>(num_outputs));
    std::list<size> sizes;
    builder b;

    for (int32_t i = 0; i < num_inputs; ++i) {
        DimsExprs &s = shapes[static_cast<size_t>(i)];
        in.push_back(theirs(inputs[i].dtype));
        s.nbDims = inputs[i].num_dims;
        for (int32_t d = 0; d < s.nbDims; ++d) {
            sizes.emplace_back(inputs[i].dims[d], symbolic == 0);
            s.d[d] = &sizes.back();
        }
    }
    if (building(plugin)->getOutputDataTypes(out.data(), num_outputs, in.data(), num_inputs) != 0 ||
        building(plugin)->getOutputShapes(shapes.data(), num_inputs, nullptr, 0, made.data(),
                                          num_outputs, b) != 0)
        return -1;
    for (int32_t i = 0; i < num_outputs; ++i) {
        const DimsExprs &s = made[static_cast<size_t>(i)];
        outputs[i].dtype = mine(out[static_cast<size_t>(i)]);
        outputs[i].num_dims = s.nbDims;
        for (int32_t d = 0; d < s.nbDims; ++d)
            outputs[i].dims[d] = static_cast<const size *>(s.d[d])->impl.value;
    }
    return 0;
}

int32_t drive_supports(void *plugin, const drive_tensor *inputs, int32_t num_inputs,
                       const drive_tensor *outputs, int32_t num_outputs, int32_t format)
{
    const auto f = static_cast<TensorFormat>(format);
    std::vector<DynamicPluginTensorDesc> tensors = dynamic_of(inputs, num_inputs, f);
    const std::vector<DynamicPluginTensorDesc> of_outputs = dynamic_of(outputs, num_outputs, f);
    tensors.insert(tensors.end(), of_outputs.begin(), of_outputs.end());
    for (int32_t i = 0; i < num_inputs + num_outputs; ++i)
        if (!building(plugin)->supportsFormatCombination(i, tensors.data(), num_inputs,
                                                         num_outputs))
            return 0;
    return 1;
}

size_t drive_workspace(void *plugin, const drive_tensor *inputs, int32_t num_inputs,
                       const drive_tensor *outputs, int32_t num_outputs)
{
    const auto in = dynamic_of(inputs, num_inputs), out = dynamic_of(outputs, num_outputs);
    if (building(plugin)->configurePlugin(in.data(), num_inputs, out.data(), num_outputs) != 0)
        return SIZE_MAX;
    return building(plugin)->getWorkspaceSize(in.data(), num_inputs, out.data(), num_outputs);
}

int32_t drive_change(void *plugin, const drive_tensor *inputs, int32_t num_inputs,
                     const drive_tensor *outputs, int32_t num_outputs)
{
    const auto in = descs_of(inputs, num_inputs), out = descs_of(outputs, num_outputs);
    return running(plugin)->onShapeChange(in.data(), num_inputs, out.data(), num_outputs);
}

int32_t drive_enqueue(void *plugin, const drive_tensor *inputs, int32_t num_inputs,
                      const drive_tensor *outputs, int32_t num_outputs, void *workspace,
                      void *stream)
{
    const auto in = descs_of(inputs, num_inputs), out = descs_of(outputs, num_outputs);
    std::vector<const void *> from;
    std::vector<void *> to;
    for (int32_t i = 0; i < num_inputs; ++i)
        from.push_back(inputs[i].data);
    for (int32_t i = 0; i < num_outputs; ++i)
        to.push_back(outputs[i].data);
    return running(plugin)->enqueue(in.data(), out.data(), from.data(), to.data(), workspace,
                                    static_cast<cudaStream_t>(stream));
}

const char *drive_error(void)
{
    static std::string given;
    given = last_error;
    last_error.clear();
    return given.c_str();
}

void *drive_function(const char *name)
{
    return all.plugins == nullptr ? nullptr : dlsym(all.plugins, name);
}
